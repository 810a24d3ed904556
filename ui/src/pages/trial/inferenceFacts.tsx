import { type Trial } from "../../api/trial";
import { type Fact } from "../../components/Facts";
import { count, NONE, number } from "../../format/numbers";

/** Facts of a batch inference: rows, shards and throughput. None for a training, which has metrics and checkpoints. */
export const inferenceFacts = ({ is_inference, progress, shards }: Trial): readonly (Fact | false)[] =>
  is_inference
    ? [
        { label: "Rows", first: true, value: shards === null ? NONE : shards.rows === null ? count(shards.rows_done) : `${count(shards.rows_done)} of ${count(shards.rows)}` },
        progress === null && { label: "Shards", first: true, value: shards === null ? NONE : `${count(shards.done)} of ${count(shards.total)}${shards.skipped === 0 ? "" : `, ${count(shards.skipped)} set aside`}` },
        { label: "Rows per second", first: true, value: number(shards?.rows_per_s ?? null) },
      ]
    : [];
