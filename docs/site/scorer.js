// Sphinx finds only the pages that have every word, and orders most of them by title. Here a page needs most of the words,
// where a rare word counts more than a frequent one, and words in one heading count again: the result leads to it.
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
  const { docnames, titles, alltitles } = Search._index;
  const weights = new Map();
  const pages = new Map();
  for (const word of words) {
    const hits = pagesWith(new Set([word]), excluded);
    if (hits.length) weights.set(word, Math.log(1 + docnames.length / hits.length));
    for (const hit of hits) {
      if (!pages.has(hit[0])) pages.set(hit[0], { hit, text: 0, heading: 0 });
      pages.get(hit[0]).text += weights.get(word);
    }
  }
  const sum = (chosen) => [...weights].reduce((all, [word, weight]) => (chosen(word) ? all + weight : all), 0);
  const whole = sum(() => true);
  const stemmer = new Stemmer();
  for (const [title, places] of Object.entries(alltitles)) {
    const stems = new Set(splitQuery(title.toLowerCase()).map((word) => stemmer.stemWord(word)));
    const heading = sum((word) => stems.has(word));
    for (const [file, id] of places) {
      const page = pages.get(docnames[file]);
      if (!page || heading <= page.heading) continue;
      page.heading = heading;
      if (id === null || titles[file] === title || heading < NEEDED_SHARE * whole) continue;
      page.hit[1] = `${titles[file]} > ${title}`;
      page.hit[2] = `#${id}`;
    }
  }
  const best = Math.max(0, ...[...pages.values()].map(({ text }) => text));
  return [...pages.values()]
    .filter(({ text }) => text >= Math.min(best, NEEDED_SHARE * whole))
    .map(({ hit, text, heading }) => {
      hit[4] = Math.round((100 * (text + 2 * heading)) / whole);
      return hit;
    });
};
