// The reader's theme, before the page is drawn: the attention explorer reads the page's colours when it begins.
if (!["light", "dark"].includes(document.documentElement.dataset.theme)) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
