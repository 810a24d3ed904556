import { screen } from "@testing-library/react";
import { describe, expect, it } from "vitest";

import { show } from "../testing/show";
import { Markdown } from "./Markdown";

const TEXT = "# Title\n**bold** <img src=x onerror=alert(1)> [site](https://x.org) [bad](javascript:alert(1)) ![p](https://x.org/p.png)\n\n```\n<script>\n```\n- one";

describe("a text in Markdown", () => {
  it("becomes elements, and none of them comes from its own markup", () => {
    const { container } = show(<Markdown text={TEXT} />);
    expect(screen.getByRole("heading", { level: 3, name: "Title" })).toBeTruthy();
    expect(screen.getByText("bold").tagName).toBe("STRONG");
    expect(container.querySelector("img, script")).toBeNull();
    expect(screen.getByText("<script>").tagName).toBe("PRE");
    const links = screen.getAllByRole("link");
    expect(links.map((link) => link.getAttribute("href"))).toEqual(["https://x.org/", "https://x.org/p.png"]);
    expect(links.every((link) => link.getAttribute("rel") === "noopener noreferrer nofollow" && link.getAttribute("target") === "_blank")).toBe(true);
    expect(container.textContent).toContain("[bad](javascript:alert(1))");
    expect(screen.getAllByRole("listitem")).toHaveLength(1);
  });
});
