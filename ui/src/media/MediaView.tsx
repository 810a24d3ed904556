import { Box, chakra, Stack, Table, Text } from "@chakra-ui/react";
import { useState } from "react";

import { apiUrl, withQuery } from "../api/client";
import { ErrorNotice } from "../components/ErrorNotice";
import { Loading } from "../components/Loading";
import { Stale } from "../components/Stale";
import { count, number, plural } from "../format/numbers";
import { useData } from "../hooks/useData";
import { CurvePicture, HistogramPicture } from "./pictures";
import { type MediaContent, type MediaItem, type MediaMatrix, type MediaTable } from "./series";

interface Props {
  trialId: number | string;
  /** Key of the series, which names the item for screen readers. */
  name: string;
  item: MediaItem;
}

/** Width in pixels up to which a small image is enlarged, by whole factors. */
const ENLARGED = 224;

const Picture = ({ trialId, name, item }: Props) => {
  const href = apiUrl(withQuery(`trials/${trialId}/media/image`, { path: item.path }));
  const [width, setWidth] = useState<number | null>(null);
  const [failed, setFailed] = useState<string | null>(null);
  if (failed === href) {
    return (
      <Text color="fg.muted" fontSize="sm">
        The image of step {count(item.step)} cannot be shown: it is no PNG or JPEG file, or too large.
      </Text>
    );
  }
  const factor = width === null ? 1 : Math.max(1, Math.floor(ENLARGED / width));
  return (
    <chakra.a display="block" href={href} maxW="100%" rel="noreferrer" target="_blank" width="fit-content">
      <chakra.img
        alt={`${name}, step ${item.step}`}
        loading="lazy"
        maxW="100%"
        onError={() => setFailed(href)}
        onLoad={(event) => setWidth(event.currentTarget.naturalWidth)}
        src={href}
        style={factor > 1 && width !== null ? { imageRendering: "pixelated", width: width * factor } : undefined}
      />
    </chakra.a>
  );
};

const cellText = (value: unknown): string => (value === null ? "" : typeof value === "number" ? number(value) : String(value));

const TableContent = ({ name, table }: { name: string; table: MediaTable }) => (
  <Stack gap={1}>
    <Box aria-label={`Table ${name}`} maxH="24rem" overflow="auto" role="region" tabIndex={0}>
      <Table.Root size="sm" stickyHeader>
        <Table.Header>
          <Table.Row>
            {table.columns.map((column, index) => (
              <Table.ColumnHeader key={index}>
                <bdi>{column}</bdi>
              </Table.ColumnHeader>
            ))}
          </Table.Row>
        </Table.Header>
        <Table.Body>
          {table.rows.map((row, index) => (
            <Table.Row key={index}>
              {row.map((value, place) => (
                <Table.Cell key={place} overflowWrap="anywhere">
                  <bdi>{cellText(value)}</bdi>
                </Table.Cell>
              ))}
            </Table.Row>
          ))}
        </Table.Body>
      </Table.Root>
    </Box>
    {table.rows_total > table.rows.length ? (
      <Text color="fg.muted" fontSize="xs">
        The first {count(table.rows.length)} of {plural(table.rows_total, "row")}.
      </Text>
    ) : null}
  </Stack>
);

/** Strongest shade of a cell in percent, at which its number is still readable. */
const SHADE = 45;

const MatrixContent = ({ name, matrix }: { name: string; matrix: MediaMatrix }) => {
  const sums = matrix.counts.map((row) => row.reduce((sum, value) => sum + value, 0));
  const all = sums.reduce((sum, value) => sum + value, 0);
  const right = matrix.counts.reduce((sum, row, index) => sum + (row[index] ?? 0), 0);
  return (
    <Stack gap={1}>
      <Box aria-label={`Confusion matrix ${name}`} maxH="32rem" overflow="auto" role="region" tabIndex={0}>
        <Table.Root fontVariantNumeric="tabular-nums" size="sm" width="auto">
          <Table.Header>
            <Table.Row>
              <Table.ColumnHeader color="fg.muted">true, predicted</Table.ColumnHeader>
              {matrix.labels.map((label, index) => (
                <Table.ColumnHeader key={index} textAlign="end">
                  <bdi>{label}</bdi>
                </Table.ColumnHeader>
              ))}
            </Table.Row>
          </Table.Header>
          <Table.Body>
            {matrix.counts.map((row, index) => (
              <Table.Row key={index}>
                <Table.ColumnHeader scope="row">
                  <bdi>{matrix.labels[index]}</bdi>
                </Table.ColumnHeader>
                {row.map((value, place) => {
                  const share = value / Math.max(1, sums[index] ?? 0);
                  return (
                    <Table.Cell
                      key={place}
                      style={{ background: `color-mix(in srgb, var(--chakra-colors-blue-solid) ${Math.round(SHADE * share)}%, transparent)` }}
                      textAlign="end"
                      title={`${Math.round(share * 100)} % of its true class`}
                    >
                      {count(value)}
                    </Table.Cell>
                  );
                })}
              </Table.Row>
            ))}
          </Table.Body>
        </Table.Root>
      </Box>
      <Text color="fg.muted" fontSize="xs">
        {count(right)} of {plural(all, "sample")} are right{all > 0 ? ` (${number((100 * right) / all)} %)` : ""}. A cell is shaded by its share of the true class.
      </Text>
    </Stack>
  );
};

const Document = ({ trialId, name, item }: Props) => {
  const path = withQuery(`trials/${trialId}/media/content`, { path: item.path });
  const { data, error, loading, stale, refresh } = useData<MediaContent>(path, { everyMs: null, keepPrevious: true });
  if (loading) return <Loading lines={2} />;
  if (data === undefined || error !== null) return error === null ? null : <ErrorNotice error={error} onRetry={refresh} what={name} />;
  return (
    <Stale stale={stale}>
      {typeof data.text === "string" ? (
        <chakra.pre fontSize="sm" maxH="24rem" overflow="auto" tabIndex={0} unicodeBidi="isolate" whiteSpace="pre-wrap">
          {data.text}
        </chakra.pre>
      ) : null}
      {data.table ? <TableContent name={name} table={data.table} /> : null}
      {data.matrix ? <MatrixContent matrix={data.matrix} name={name} /> : null}
      {data.histogram ? <HistogramPicture histogram={data.histogram} name={name} /> : null}
      {data.curve ? <CurvePicture curve={data.curve} name={name} /> : null}
    </Stale>
  );
};

/** One report: an image, or a document in the form of its kind. Names and contents come from a host, and are text. */
export const MediaView = (props: Props) => (props.item.kind === "image" ? <Picture {...props} /> : <Document {...props} />);
