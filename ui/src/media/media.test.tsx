import { fireEvent, screen, waitFor, within } from "@testing-library/react";
import { beforeEach, describe, expect, it } from "vitest";

import { App } from "../app/App";
import { serveCanvas } from "../testing/canvas";
import { experiment, trial, trialRow } from "../testing/rows";
import { serve } from "../testing/server";
import { show } from "../testing/show";

const ADDRESS = "/plugin/dtrain/trials/7?tab=media";
const HOSTILE = "<img src=x onerror=alert(1)>";

const item = (kind: string, step: number, key = "samples") => ({ at: "2026-01-01T00:00:00Z", attempt: 1, kind, path: `work/media/${key}/${step}-attempt1-${kind}`, size_bytes: 9, step });
const series = (key: string, ...items: object[]) => ({ items, key });
const listed = (...all: object[]) => ({ body: { series: all, truncated: false } });

const CONTENTS: Record<string, object> = {
  curve: { curve: { note: "average precision 0.83", x: [0, 0.5, 1], x_label: "recall", y: [1, 1, 0.5], y_label: "precision" } },
  histogram: { histogram: { counts: [1, 3, 0], edges: [-0.125, 0, 1, 2.25], left_out: 2 } },
  matrix: { matrix: { counts: [[8, 2], [1, 9]], labels: ["cat", HOSTILE] } },
  table: { table: { columns: ["id", HOSTILE], rows: [[1, HOSTILE], [null, true]], rows_total: 1200 } },
  text: { text: `${HOSTILE} is only text` },
};

const routes = (media: object, more: object = {}) => ({
  "experiments/5": { body: experiment() },
  "trials/7": { body: trial(7, { is_inference: false }) },
  "trials/7/media": media,
  "trials/7/media/content": (url: URL) => {
    const kind = /attempt1-(\w+)$/.exec(url.searchParams.get("path") ?? "")?.[1] ?? "";
    return { body: { kind, ...CONTENTS[kind] } };
  },
  ...more,
});

const pathOf = (image: HTMLElement) => new URL((image as HTMLImageElement).src).searchParams.get("path");

beforeEach(serveCanvas);

describe("the media of a trial", () => {
  it("begin at the latest step, and the slider shows earlier ones", async () => {
    serve(routes(listed(series("samples", item("image", 10), item("image", 20)), series("late", item("image", 20, "late")))));
    const { router } = show(<App />, ADDRESS);
    expect(pathOf(await screen.findByRole("img", { name: "samples, step 20" }))).toBe("work/media/samples/20-attempt1-image");
    const slider = screen.getByRole("slider", { name: "Step" });
    expect(slider.getAttribute("aria-valuetext")).toBe("step 20");
    fireEvent.change(slider, { target: { value: "0" } });
    expect(await screen.findByRole("img", { name: "samples, step 10" })).toBeTruthy();
    expect(screen.getByText("Its first report is at step 20.")).toBeTruthy();
    expect(router.state.location.search).toBe("?tab=media&step=10");
    fireEvent.change(screen.getByRole("slider", { name: "Step" }), { target: { value: "1" } });
    await waitFor(() => expect(router.state.location.search).toBe("?tab=media"));
  });

  it("tell that an image is none", async () => {
    serve(routes(listed(series("samples", item("image", 10)))));
    show(<App />, ADDRESS);
    fireEvent.error(await screen.findByRole("img", { name: "samples, step 10" }));
    expect(await screen.findByText(/The image of step 10 cannot be shown: it is no PNG or JPEG file/)).toBeTruthy();
  });

  it("have each kind of document, and names and contents are text", async () => {
    const kinds = Object.keys(CONTENTS);
    serve(routes(listed(...kinds.map((kind) => series(`${kind} ${HOSTILE}`, item(kind, 10))))));
    const { container } = show(<App />, ADDRESS);
    expect(await screen.findByText(`${HOSTILE} is only text`)).toBeTruthy();
    expect(await screen.findByText("The first 2 of 1,200 rows.")).toBeTruthy();
    expect(await screen.findByRole("img", { name: `Histogram histogram ${HOSTILE}: 4 values, at most 3 in a bin, and 2 that are NaN or infinite, from -0.125 to 2.25` })).toBeTruthy();
    expect(container.querySelectorAll("svg rect")).toHaveLength(3);
    expect(await screen.findByRole("img", { name: `Curve curve ${HOSTILE}: precision over recall, average precision 0.83` })).toBeTruthy();
    expect(container.querySelector("polyline")?.getAttribute("points")).toBe("0.00,0.00 160.00,0.00 320.00,80.00");
    const matrix = await screen.findByRole("region", { name: `Confusion matrix matrix ${HOSTILE}` });
    expect(within(matrix).getAllByRole("cell").map(({ textContent }) => textContent)).toEqual(["8", "2", "1", "9"]);
    expect(screen.getByText(/17 of 20 samples are right \(85 %\)/)).toBeTruthy();
    expect(container.querySelector("img")).toBeNull();
  });

  it("that cannot be shown have the reason", async () => {
    const refused = { status: 409, body: { detail: { code: "conflict", hint: "", message: "'a' of step 10 cannot be shown: it has not the form of a table." } } };
    serve(routes(listed(series("a", item("table", 10))), { "trials/7/media/content": refused }));
    show(<App />, ADDRESS);
    expect(await screen.findByText(/it has not the form of a table/)).toBeTruthy();
  });

  it("are explained while there are none", async () => {
    serve(routes(listed()));
    show(<App />, ADDRESS);
    expect(await screen.findByText("The trial has reported no media.")).toBeTruthy();
    expect(screen.getByText('ctx.report_image("samples", image, step=step)')).toBeTruthy();
  });
});

describe("the media of compared trials", () => {
  const compared = (id: number) => ({ ...trialRow(id), experiment: "resnet", experiment_id: 5, metric: "loss" });
  const page = (first: object, second: object) => ({
    compare: { body: { has_epochs: false, metrics: [], trials: [compared(1), compared(2)] } },
    "differences/trials": { body: { rows: [], same: [], trials: [1, 2] } },
    "trials/1/media": first,
    "trials/2/media": second,
  });

  it("are side by side at one step", async () => {
    serve(page(listed(series("samples", item("image", 10), item("image", 20))), listed(series("samples", item("image", 15)))));
    show(<App />, "/plugin/dtrain/compare?trial=1&trial=2");
    expect(await screen.findByRole("img", { name: "samples of trial 1, step 20" })).toBeTruthy();
    expect(screen.getByRole("img", { name: "samples of trial 2, step 15" })).toBeTruthy();
    fireEvent.change(screen.getByRole("slider", { name: "Step" }), { target: { value: "0" } });
    expect(await screen.findByRole("img", { name: "samples of trial 1, step 10" })).toBeTruthy();
    expect(screen.getByText("No report up to this step.")).toBeTruthy();
  });

  it("are absent while no trial has any", async () => {
    serve(page(listed(), listed()));
    show(<App />, "/plugin/dtrain/compare?trial=1&trial=2");
    expect(await screen.findByText("None of the trials has reported a metric.")).toBeTruthy();
    expect(screen.queryByRole("heading", { name: "Media" })).toBeNull();
  });
});
