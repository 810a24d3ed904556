/** The place of the pointer, which all charts of one page share. */

/** Place on the x axis, in the unit of `axis`. */
export interface Hover {
  /** Charts with the same axis show the same place. */
  readonly axis: string;
  readonly x: number;
  /** Chart under the pointer. */
  readonly chart: string;
  /** Series that is nearest to the pointer. */
  readonly series: string | null;
}

/** Holds the place and tells its listeners, outside of React's state: it changes with each move of the pointer. */
export class HoverBus {
  #value: Hover | null = null;
  readonly #listeners = new Set<(value: Hover | null) => void>();

  get value(): Hover | null {
    return this.#value;
  }

  /** Set the place. Equal values notify no listener. */
  set(value: Hover | null): void {
    const old = this.#value;
    if (old === value) return;
    if (old !== null && value !== null && old.x === value.x && old.axis === value.axis && old.chart === value.chart && old.series === value.series) return;
    this.#value = value;
    this.#listeners.forEach((listener) => listener(value));
  }

  /** Clear the place if this chart has set it. */
  leave(chart: string): void {
    if (this.#value?.chart === chart) this.set(null);
  }

  subscribe(listener: (value: Hover | null) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}

/** Range of an x axis that charts share after a zoom. Null shows everything. */
export class ZoomBus {
  readonly #ranges = new Map<string, readonly [number, number]>();
  readonly #listeners = new Set<(axis: string) => void>();

  get(axis: string): readonly [number, number] | null {
    return this.#ranges.get(axis) ?? null;
  }

  set(axis: string, range: readonly [number, number] | null): void {
    if (range === null) {
      if (!this.#ranges.delete(axis)) return;
    } else {
      this.#ranges.set(axis, range);
    }
    this.#listeners.forEach((listener) => listener(axis));
  }

  subscribe(listener: (axis: string) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }
}
