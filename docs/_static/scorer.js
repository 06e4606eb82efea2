// The search names chapters first, then pages of experiments, then what is in the library.
var Scorer = {
  score: ([docname, title, anchor, descr, score, filename]) =>
    score + (docname.startsWith("notebooks/") ? 100 : docname.startsWith("library/") ? -30 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
