/** Stacks of ranks, those that are alike together. */
import { ranges } from "./words";

export interface RankStack {
  rank: number;
  host: string;
  pid: number;
  text: string;
  problem: string;
}

export interface StackGroup {
  /** Numbers as ranges: "0-3, 7". */
  ranks: string;
  count: number;
  hosts: readonly string[];
  text: string;
  problem: string;
}

/** Addresses of threads differ between processes that are at the same place. */
const keyOf = ({ text, problem }: RankStack): string => `${problem}\n${text.replace(/0x[0-9a-f]+/gi, "")}`;

/** Return stacks by what they show: small groups first, because a rank that differs from the others is the one to look at. */
export const stackGroups = (stacks: readonly RankStack[]): StackGroup[] => {
  const groups = new Map<string, RankStack[]>();
  for (const one of stacks) groups.set(keyOf(one), [...(groups.get(keyOf(one)) ?? []), one]);
  return [...groups.values()]
    .sort((a, b) => a.length - b.length || (a[0]?.rank ?? 0) - (b[0]?.rank ?? 0))
    .map((own) => ({ ranks: ranges(own.map(({ rank }) => rank)), count: own.length, hosts: [...new Set(own.map(({ host }) => host))], text: own[0]?.text ?? "", problem: own[0]?.problem ?? "" }));
};
