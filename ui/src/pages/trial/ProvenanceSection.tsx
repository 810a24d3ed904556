import { Box, Stack, Table, Text } from "@chakra-ui/react";
import { useMemo, useState } from "react";

import { type HostProvenance, type Provenance } from "../../api/trial";
import { ErrorNotice } from "../../components/ErrorNotice";
import { Facts } from "../../components/Facts";
import { Loading } from "../../components/Loading";
import { SearchBar } from "../../components/SearchBar";
import { count, NONE, plural } from "../../format/numbers";
import { useData } from "../../hooks/useData";
import { own } from "../../lib/own";
import { deviceWords, shortDigest } from "./provenance";

const UNKNOWN = "unknown";

/** Rows of the table of packages. A search finds the others. */
const MOST = 500;

const Packages = ({ lists }: { lists: Provenance["packages"] }) => {
  const [text, setText] = useState("");
  const digests = Object.keys(lists);
  const names = useMemo(() => [...new Set(Object.values(lists).flatMap((list) => Object.keys(list)))].sort(), [lists]);
  const found = names.filter((name) => name.includes(text.toLowerCase()));
  return (
    <Box>
      <SearchBar onChange={setText} placeholder="Search for a package" value={text} />
      <Text color="fg.muted" fontSize="xs" my={1}>
        {count(found.length)} of {plural(names.length, "package")}
        {found.length > MOST ? `, the first ${count(MOST)} are shown` : ""}
      </Text>
      <Box aria-label="Packages of the interpreter" maxH="20rem" maxW="46rem" overflow="auto" role="region" tabIndex={0}>
        <Table.Root size="sm" stickyHeader>
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader>Package</Table.ColumnHeader>
              {digests.map((digest) => (
                <Table.ColumnHeader key={digest}>{digests.length === 1 ? "Version" : `Version in ${shortDigest(digest)}`}</Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {found.slice(0, MOST).map((name) => (
              <Table.Row key={name}>
                <Table.Cell overflowWrap="anywhere">{name}</Table.Cell>
                {digests.map((digest) => {
                  const version = own(lists[digest] ?? {}, name);
                  return <Table.Cell key={digest}>{version === undefined ? NONE : (version ?? UNKNOWN)}</Table.Cell>;
                })}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
    </Box>
  );
};

const Host = ({ host, packages }: { host: HostProvenance; packages: Provenance["packages"] }) => {
  const listed = host.packages === null ? undefined : own(packages, host.packages);
  return (
    <Facts
      facts={[
        { label: "Host", value: host.host },
        { label: "Devices", value: deviceWords(host) },
        { label: "Interpreter", value: `Python ${host.python ?? UNKNOWN}, ${host.executable ?? UNKNOWN}`, wide: true },
        host.other_interpreter !== null && { label: "Ranks run another interpreter, whose packages are unknown", value: host.other_interpreter, wide: true },
        { label: "Packages", value: listed === undefined ? UNKNOWN : `${plural(Object.keys(listed).length, "package")}, ${shortDigest(host.packages ?? "")}` },
        { label: "CUDA of PyTorch", value: host.cuda ?? UNKNOWN },
        host.driver !== null && { label: "Driver", value: host.driver },
        host.image !== null && { label: "Image of its container", value: host.image, wide: true },
      ]}
    />
  );
};

const Content = ({ id }: { id: string }) => {
  const { data, error, loading, refresh } = useData<Provenance>(`trials/${id}/provenance`, { everyMs: null });
  if (loading) return <Loading lines={4} />;
  if (data === undefined) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what="Provenance" />;
  const { lock } = data;
  return (
    <Stack gap={2}>
      <Facts
        facts={[
          { label: "Lock file", value: lock !== null ? `${lock.path}, ${shortDigest(lock.digest)}` : data.is_launched ? "none" : UNKNOWN },
          { label: "Seed", value: String(data.seed) },
          { label: "Data", value: data.data === null ? `${UNKNOWN}: it has published no manifest` : `${plural(data.data.rows, "row")}, manifest ${shortDigest(data.data.sha256)}` },
        ]}
      />
      {data.is_launched ? null : <Text color="fg.muted">Hosts and packages are recorded at the launch of attempt {data.attempt}.</Text>}
      {data.hosts.map((host) => (
        <Host host={host} key={host.host} packages={data.packages} />
      ))}
      {data.runtimes.map(({ ranks, host, torch, cuda, cudnn, nccl, backend }) => (
        <Text fontSize="sm" key={`${host} ${ranks.join()}`}>
          {ranks.length === 1 ? "Rank" : "Ranks"} {ranks.join(", ")} on {host} reported: PyTorch {torch ?? "none"}, CUDA {cuda ?? UNKNOWN}, cuDNN {cudnn ?? UNKNOWN}, NCCL {nccl ?? UNKNOWN}, backend {backend ?? UNKNOWN}.
        </Text>
      ))}
      {Object.keys(data.packages).length === 0 ? null : <Packages lists={data.packages} />}
    </Stack>
  );
};

/** The surroundings in which a trial ran: packages and devices of its hosts, lock file, data. */
export const ProvenanceSection = ({ id }: { id: string }) => (
  <Box as="section">
    <Text fontWeight="medium">Packages and devices</Text>
    <Content id={id} />
  </Box>
);
