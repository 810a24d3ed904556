/** The width of a window in tests. */
import { vi } from "vitest";

/** Let the window be as narrow as that of a phone, or not. `vi.unstubAllGlobals` ends it. */
export const phone = (isNarrow: boolean) =>
  vi.stubGlobal("matchMedia", (query: string) => ({ matches: isNarrow && query === "(max-width: 600px)", addEventListener: () => undefined, removeEventListener: () => undefined, addListener: () => undefined, removeListener: () => undefined }));
