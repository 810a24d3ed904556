import { mkdirSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { defineConfig, type Plugin } from "vitest/config";

/** Upper limit of the compressed bundle. Each page of Airflow that opens a tab of ours loads it once. */
const LIMIT_BYTES = 250_000;

/** Modules that the Airflow UI provides, and the globals in which it keeps them. */
const GLOBALS: Record<string, string> = {
  "@chakra-ui/react": "ChakraUI",
  "@emotion/react": "EmotionReact",
  react: "React",
  "react-dom": "ReactDOM",
  "react-router-dom": "ReactRouterDOM",
  "react/jsx-runtime": "ReactJSXRuntime",
};

const version = (): string => {
  const text = readFileSync(new URL("../airflow_provider_dtrain/__init__.py", import.meta.url), "utf8");
  const found = /^__version__ = "(.+)"$/m.exec(text)?.[1];
  if (found === undefined) throw new Error("airflow_provider_dtrain/__init__.py must set __version__.");
  return found;
};

/** Print the compressed size of the bundle, and fail above the limit. */
const size = (): Plugin => ({
  name: "size",
  generateBundle(_options, bundle) {
    for (const file of Object.values(bundle)) {
      const bytes = gzipSync(file.type === "chunk" ? file.code : file.source, { level: 9 }).length;
      this.info(`${file.fileName}: ${(bytes / 1000).toFixed(1)} kB gzipped, limit ${LIMIT_BYTES / 1000} kB`);
      if (bytes > LIMIT_BYTES) this.error(`${file.fileName} has ${bytes} bytes gzipped, the limit is ${LIMIT_BYTES}.`);
    }
  },
});

/** Folder of the bundle in the package, and the one beside the sources into which it is built first. */
const WWW = fileURLToPath(new URL("../airflow_provider_dtrain/www", import.meta.url));
const BUILT = fileURLToPath(new URL(".www-new", import.meta.url));

/** Replace the files of the package's bundle one by one, so that an API server that runs never finds the folder empty. */
const swap = (): Plugin => ({
  name: "swap",
  closeBundle() {
    const built = readdirSync(BUILT);
    mkdirSync(WWW, { recursive: true });
    for (const name of built) renameSync(`${BUILT}/${name}`, `${WWW}/${name}`);
    for (const name of readdirSync(WWW)) if (!built.includes(name)) rmSync(`${WWW}/${name}`, { recursive: true });
    rmSync(BUILT, { recursive: true });
  },
});

const { DTRAIN_UI_OUT: OUT } = process.env;

export default defineConfig({
  define: {
    "process.env.NODE_ENV": JSON.stringify(process.env.VITEST ? "test" : "production"),
    __VERSION__: JSON.stringify(version()),
  },
  build: {
    outDir: OUT ?? BUILT,
    emptyOutDir: true,
    target: "es2022",
    reportCompressedSize: false,
    rollupOptions: {
      input: "src/main.tsx",
      external: Object.keys(GLOBALS),
      output: {
        format: "iife",
        name: "dtrain",
        entryFileNames: "main.js",
        globals: GLOBALS,
      },
    },
  },
  plugins: [size(), ...(OUT === undefined && process.env.VITEST === undefined ? [swap()] : [])],
  test: {
    environment: "happy-dom",
    include: ["src/**/*.test.{ts,tsx}"],
    setupFiles: ["src/testing/setup.ts"],
    restoreMocks: true,
    // Files share the loaded modules: most of the time would go into loading Chakra for each of them. setup.ts cleans up.
    isolate: false,
    pool: "threads",
    // A machine that runs other tests at the same time is slow.
    testTimeout: 60_000,
  },
});
