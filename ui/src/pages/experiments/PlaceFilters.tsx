import { FilterSelect } from "../../components/FilterSelect";
import { Segments } from "../../components/Segments";
import { EVERYONE } from "./owner";

const ARCHIVE = [
  { value: "", text: "Not archived" },
  { value: "only", text: "Archived" },
  { value: "all", text: "Both" },
] as const;

interface OwnerProps {
  /** Of the address: a name, `EVERYONE`, or empty. */
  owner: string;
  /** Name of the user who owns experiments, else empty. */
  user: string;
  onChange: (change: { owner: string }) => void;
}

/** Choice between the user's own experiments and all. */
export const OwnerChoice = ({ owner, user, onChange }: OwnerProps) =>
  user === "" ? null : (
    <Segments
      label="Owner"
      onChange={(value) => onChange({ owner: value })}
      options={[
        { value: user, text: "Mine" },
        { value: EVERYONE, text: "All" },
      ]}
      value={owner}
    />
  );

interface Props extends Omit<OwnerProps, "onChange"> {
  owners: readonly string[];
  project: string;
  projects: readonly string[];
  archived: string;
  onChange: (change: { owner?: string; project?: string; archived?: string }) => void;
}

/** Filters by owner, project and archive. */
export const PlaceFilters = ({ owner, user, owners, project, projects, archived, onChange }: Props) => (
  <>
    <FilterSelect
      all="All owners"
      label="Filter by owner"
      multiple={false}
      onChange={([value = EVERYONE]) => onChange({ owner: value })}
      options={owners}
      render={(name) => (name === user ? `${name} (me)` : name)}
      value={owner === EVERYONE || owner === "" ? [] : [owner]}
    />
    <FilterSelect all="All projects" label="Filter by project" multiple={false} onChange={([value = ""]) => onChange({ project: value })} options={projects} value={project === "" ? [] : [project]} />
    <Segments label="Archive" onChange={(value) => onChange({ archived: value })} options={ARCHIVE} value={archived as (typeof ARCHIVE)[number]["value"]} />
  </>
);
