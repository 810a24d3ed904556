/** Version of the provider from whose sources the bundle is built. */
declare const __VERSION__: string;
