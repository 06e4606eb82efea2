// The reader's theme, before the page is drawn: the attention explorer reads the page's colours when it begins.
if (!["light", "dark"].includes(document.documentElement.dataset.theme)) {
  const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

// A closed result is called what it is: the cell's title stands at its code already.
document.addEventListener("DOMContentLoaded", () => {
  for (const [state, words] of [["collapsed", "Show the result"], ["expanded", "Hide the result"]]) {
    document.querySelectorAll(`details.hide.below-input summary .${state}`).forEach((p) => (p.textContent = words));
  }
});
