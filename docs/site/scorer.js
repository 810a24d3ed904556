// Sphinx finds only the pages that have every word, and orders most of them by title. Here a page needs most of the words,
// where a rare word counts more than a frequent one. Words of one section count again, those of its heading twice more:
// the result leads to the best section. SECTIONS has the words of each one: [anchor, heading, stems].
// Pages for users rank above those for developers, which contain every word.
const FOR_DEVELOPERS = /^(decisions|project)\/|^(architecture|benchmarks|host-protocol|gpu-report)$/;
const NEEDED_SHARE = 0.6;
var Scorer = {
  score: ([page, , , , score]) => (FOR_DEVELOPERS.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 300,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};

// searchtools.js is loaded before this file.
const pagesWith = Search.performTermsSearch;
Search.performTermsSearch = (words, excluded) => {
  const { docnames, titles } = Search._index;
  const weights = new Map();
  const pages = new Map();
  for (const word of words) {
    const hits = pagesWith(new Set([word]), excluded);
    if (hits.length) weights.set(word, Math.log(1 + docnames.length / hits.length));
    for (const hit of hits) {
      if (!pages.has(hit[0])) pages.set(hit[0], { hit, text: 0, section: 0 });
      pages.get(hit[0]).text += weights.get(word);
    }
  }
  const sum = (chosen) => [...weights].reduce((all, [word, weight]) => (chosen(word) ? all + weight : all), 0);
  const whole = sum(() => true);
  const stemmer = new Stemmer();
  for (const [name, page] of pages) {
    for (const [anchor, heading, stems] of SECTIONS[name] ?? []) {
      const own = new Set(stems.split(" "));
      const text = sum((word) => own.has(word));
      const titled = new Set(splitQuery(heading.toLowerCase()).map((word) => stemmer.stemWord(word)));
      const section = text + 2 * sum((word) => titled.has(word));
      if (section <= page.section) continue;
      page.section = section;
      const leads = anchor && text >= NEEDED_SHARE * whole;
      page.hit[1] = leads ? `${titles[docnames.indexOf(name)]} > ${heading}` : titles[docnames.indexOf(name)];
      page.hit[2] = leads ? `#${anchor}` : "";
    }
  }
  const best = Math.max(0, ...[...pages.values()].map(({ text }) => text));
  return [...pages.values()]
    .filter(({ text }) => text >= Math.min(best, NEEDED_SHARE * whole))
    .map(({ hit, text, section }) => {
      hit[4] = Math.round((100 * (text + section)) / whole);
      return hit;
    });
};
