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

// What goes deeper is folded, each part under its question; a link into a part opens it.
document.addEventListener("DOMContentLoaded", () => {
  if (!location.pathname.includes("-going-deeper")) return;
  for (const section of document.querySelectorAll("article > section > section")) {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    details.className = "deeper";
    section.before(details);
    details.append(summary, section);
    summary.append(section.querySelector("h2, h3"));
  }
  const open = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const part = target && target.closest("details.deeper");
    if (!part) return;
    part.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", open);
  open();
});
