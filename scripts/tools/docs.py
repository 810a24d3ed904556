"""Builds the documentation site, shows it, or prints its figures: `scripts/docs [--serve | --figures]`."""

from __future__ import annotations

import argparse
import sys


def main() -> int:
    """Build the site, and serve it if that is wanted."""
    parser = argparse.ArgumentParser(
        prog="scripts/docs", description="Builds the documentation site in build/docs/site."
    )
    parser.add_argument("--serve", action="store_true", help="serve it on this machine afterwards, until Ctrl-C")
    parser.add_argument("--port", type=int, default=8000, help="port for --serve (default 8000)")
    parser.add_argument("--figures", action="store_true", help="only print words, pictures and samples of each page")
    args = parser.parse_args()
    # They need the environment of the tests, and the help does not.
    import docs_site
    import samples

    if args.figures:
        print(samples.report())
        return 0
    try:
        docs_site.build()
    except docs_site.SiteError as error:
        print(error, file=sys.stderr)
        return 1
    site = docs_site.SITE.relative_to(docs_site.ROOT)
    print(f"The site is in {site}. Open {site}/index.html.")
    if args.serve:
        try:
            docs_site.serve(args.port)
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
