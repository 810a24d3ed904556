// Ranks pages for users above those for developers, which contain every word.
const FOR_DEVELOPERS = /^(decisions|project)\/|^(architecture|benchmarks|host-protocol|gpu-report)$/;
var Scorer = {
  score: ([page, , , , score]) => (FOR_DEVELOPERS.test(page) ? score - 100 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
