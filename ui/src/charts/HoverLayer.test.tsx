import { act, screen } from "@testing-library/react";
import userEvent from "@testing-library/user-event";
import { describe, expect, it } from "vitest";

import { show } from "../testing/show";
import { serveCanvas } from "../testing/canvas";
import { ChartGroup } from "./ChartContext";
import { type Curve } from "./curves";
import { LineChart } from "./LineChart";

const curves = Array.from({ length: 9 }, (_, at): Curve => ({ id: `gpu ${at}`, name: `gpu ${at}`, look: { color: 0, dash: 0 }, points: { xs: [1, 2, 3], ys: [at, at, at] } }));

describe("the values at the pointer", () => {
  it("are a list in its own chart, and one reading in another chart", async () => {
    serveCanvas();
    show(
      <ChartGroup>
        <LineChart axis="clock" curves={curves} id="one" label="One" />
        <LineChart axis="clock" curves={curves} id="other" label="Other" />
      </ChartGroup>,
    );
    const [one, other] = screen.getAllByRole("group");
    act(() => other?.focus());
    await userEvent.keyboard("{Home}");
    await screen.findByText("and 1 more");
    expect(other?.querySelector("[data-testid=chart-tooltip]")?.textContent).toContain("gpu 7");
    expect(one?.querySelector("[data-testid=chart-tooltip]")?.textContent).toBe("0");
  });
});
