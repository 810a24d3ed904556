/** Timings of all ranks in one row per name. */
import { type Profile } from "../../api/trial";

export interface ProfileRow {
  readonly name: string;
  readonly count: number;
  /** Mean over the ranks; null for a timing that is only sampled. */
  readonly total_s: number | null;
  readonly mean_s: number;
  readonly max_s: number;
  /** Rank with the largest mean, null where all ranks are equal or there is one. */
  readonly slowest: number | null;
}

/** Return one row per timing, in the order of the answer. */
export const profileRows = (totals: Profile["timings"]): ProfileRow[] => {
  const groups = new Map<string, Profile["timings"]>();
  for (const total of totals) {
    const group = groups.get(total.name);
    if (group === undefined) groups.set(total.name, [total]);
    else group.push(total);
  }
  return [...groups].map(([name, rows]) => {
    const mean = (values: readonly number[]) => values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
    const sums = rows.map(({ total_s }) => total_s).filter((value) => value !== null);
    const slowest = rows.reduce((most, row) => (row.mean_s > most.mean_s ? row : most));
    return {
      name,
      count: rows.reduce((sum, row) => sum + row.count, 0),
      total_s: sums.length === rows.length ? mean(sums) : null,
      mean_s: mean(rows.map(({ mean_s }) => mean_s)),
      max_s: Math.max(...rows.map(({ max_s }) => max_s)),
      slowest: rows.length > 1 && rows.some(({ mean_s }) => mean_s < slowest.mean_s) ? slowest.rank : null,
    };
  });
};
