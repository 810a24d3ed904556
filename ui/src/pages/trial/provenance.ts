/** Words for what a trial was made of. */
import { type HostProvenance, type Provenance } from "../../api/trial";
import { plural } from "../../format/numbers";

/** Characters that distinguish a digest in a line. */
const DIGEST_CHARS = 12;

export const shortDigest = (digest: string): string => digest.replace(/^sha256:/, "").slice(0, DIGEST_CHARS);

export const gitWords = ({ commit, is_clean, problem }: Provenance["git"]): string => {
  if (commit === null || commit === undefined) return `unknown: ${problem ?? ""}`;
  if (is_clean === null || is_clean === undefined) return `${commit}, unknown whether clean: ${problem ?? ""}`;
  return `${commit}, ${is_clean ? "clean" : "dirty: the code has changes that are not committed"}`;
};

/** Return the devices of a host by their slots: "0, 1: NVIDIA H100". */
export const deviceWords = ({ devices }: HostProvenance): string => {
  const slots = new Map<string, string[]>();
  for (const [slot, name] of Object.entries(devices)) slots.set(name ?? "", [...(slots.get(name ?? "") ?? []), slot]);
  return [...slots].map(([name, own]) => (name === "" ? plural(own.length, "CPU slot") : `${name} (${own.length === 1 ? "slot" : "slots"} ${own.join(", ")})`)).join("; ");
};
