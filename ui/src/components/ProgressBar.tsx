import { NONE, percent } from "../format/numbers";

/** A share between 0 and 1 as a bar with its percentage, a dash while it is unknown. */
export const ProgressBar = ({ share }: { share: number | null }) =>
  share === null ? (
    <span title="The configuration names no length to compare reports with, and no trial has ended.">{NONE}</span>
  ) : (
    <span className="dtrain-row">
      <span aria-label="Progress" aria-valuemax={100} aria-valuemin={0} aria-valuenow={Math.round(100 * share)} className="dtrain-bar" role="progressbar">
        <i style={{ width: `${100 * Math.max(0, Math.min(1, share))}%` }} />
      </span>
      <span style={{ minWidth: "5ch", textAlign: "end" }}>{percent(share)}</span>
    </span>
  );
