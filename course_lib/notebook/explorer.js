(() => {
  // One script may find several explorers: each is begun once. Nothing here needs an id or a network.
  for (const root of document.querySelectorAll(".attention-explorer:not([data-begun])")) {
    if (root.dataset.weights) begin(root);
  }

  function begin(root) {
    const view = JSON.parse(root.dataset.view);         // sentences: name, parts; a part: name, queries, keys, own, head_dims
    const weights = JSON.parse(root.dataset.weights);   // [sentence][part][layer][head][query][key], thousandths; -1: masked
    const scores = JSON.parse(root.dataset.scores);     // the same, or null for a layer; what the softmax is of
    const live = root.querySelector(".ax-live"), ROW = 30;            // ROW: units of the drawing, of any height on the screen
    const now = { sentence: 0, part: view.part, layer: view.layer, heads: view.heads };  // heads: a list, or "mean"
    let focus = view.query === null ? null : [0, view.query];         // [side, index]: side 0 queries, 1 keys
    let partner = view.key;                                           // an index on the other side; null: the strongest
    let pointed = null, mouse = "";                                   // a token while the mouse is on it; where the mouse was
    let dressed = "", painted = "";                                   // the colour of the page's letters; what the small maps show
    let causal = null, tau = 1;                                       // causal: null as in the model, or true or false

    live.innerHTML = `
      <strong class="ax-title"></strong>
      <div class="ax-bar"></div>
      <div class="ax-text" aria-hidden="true"></div>
      <div class="ax-body">
        <div class="ax-tokens">
          <div class="ax-label ax-queries">query: looks</div><div></div><div class="ax-label">key: looked at</div>
          <div class="ax-queries" role="group" aria-label="queries"></div>
          <svg class="ax-lines" preserveAspectRatio="none" aria-hidden="true"></svg>
          <div class="ax-keys" role="group" aria-label="keys"></div>
          <div class="ax-label ax-hint">a query, then a key: their numbers · arrow keys move, Escape lets go</div></div>
        <div class="ax-side"><div class="ax-said" role="status" aria-live="polite"></div><div class="ax-chain"></div><div class="ax-try"></div>
          <div aria-hidden="true"><div class="ax-label">every layer and head</div><div class="ax-heads"></div></div></div>
      </div>`;
    const find = (selector) => live.querySelector(selector);
    const sides = [find("div.ax-queries[role]"), find(".ax-keys")], bar = find(".ax-bar"), text = find(".ax-text");
    find(".ax-title").textContent = view.title;

    function make(tag, name, ...content) {
      const element = document.createElement(tag);
      if (name) element.className = name;
      element.append(...content);
      element.dataset.lmSuppressShortcuts = "true";                   // JupyterLab: the keys are for what has the focus
      return element;
    }
    function button(name, action, ...content) {
      const element = make("button", name, ...content);
      element.type = "button";
      element.onclick = action;
      return element;
    }

    // --- the numbers -----------------------------------------------------------------------------------------------
    const part = () => view.sentences[now.sentence].parts[now.part];
    const tokens = (side) => side ? part().keys : part().queries;
    const layers = () => weights[now.sentence][now.part];
    const stored = (layer) => layers()[layer];
    const known = (layer) => scores[now.sentence][now.part][layer];   // null: no scores
    const count = () => stored(0).length;                             // of heads
    const shown = () => now.heads === "mean" ? ["mean"] : now.heads;
    const colour = (h) => h === "mean" ? "var(--all)" : `var(--h${h % view.colors.length})`;
    const isCausal = (m) => m.length > 1 && m.every((row, i) => row.every((w, j) => j <= i || w < 0));
    const own = () => causal === null ? isCausal(stored(now.layer)[0]) : causal;
    const word = (side, i) => `“${tokens(side)[i]}”`;
    const is = (token, side, i) => token !== null && token[0] === side && token[1] === i;
    const best = (values) => values.reduce((most, v, i) => v !== null && (most === null || v > values[most]) ? i : most, null);
    const written = (w) => w === null ? "–" : w.toFixed(3);

    function softmax(row) {                                           // null: masked
      const top = Math.max(...row.filter((a) => a !== null)), e = row.map((a) => a === null ? null : Math.exp(a - top));
      const sum = e.reduce((total, x) => total + x, 0);
      return e.map((x) => x === null ? null : x / sum);
    }

    function visible(m) {                                             // which key each query may see; padding stays hidden
      if (causal === null || !part().own) return m.map((row) => row.map((w) => w >= 0));
      const real = m[0].map((_, j) => m.some((row) => row[j] >= 0));
      return m.map((row, i) => row.map((_, j) => real[j] && row.some((w) => w >= 0) && (!causal || j <= i)));
    }

    function map(layer, head) {                                       // (T, S) weights; null: masked
      if (head === "mean") {
        const all = stored(layer).map((_, h) => map(layer, h));
        return all[0].map((row, i) => row.map((_, j) => all.every((m) => m[i][j] === null) ? null
          : all.reduce((sum, m) => sum + m[i][j], 0) / all.length));
      }
      const m = stored(layer)[head], a = known(layer), sees = visible(m);
      if (!a || (causal === null && tau === 1)) return m.map((row) => row.map((w) => w < 0 ? null : w / 1000));
      return sees.map((row, i) => softmax(row.map((yes, j) => yes ? a[head][i][j] / 1000 / tau : null)));
    }

    const column = (m, side, i) => side ? m.map((row) => row[i]) : m[i];   // all weights of one token
    function average(lists) {
      return lists[0].map((_, j) => lists.every((l) => l[j] === null) ? null : lists.reduce((s, l) => s + l[j], 0) / lists.length);
    }

    // --- what stands still until sentence or part change -------------------------------------------------------------
    function choice(label, names, name, set, look = "") {
      const box = make("div", `ax-choice ${look}`, make("span", "", label));
      box.setAttribute("role", "group");
      box.setAttribute("aria-label", label);
      box.hidden = names.length < 2;
      names.forEach((words, i) => {
        const one = button("", () => set(i), words);
        one.dataset.of = name;
        one.dataset.value = i;
        box.append(one);
      });
      return box;
    }

    function build() {
      const H = count(), N = layers().length;
      now.layer = Math.min(now.layer, N - 1);
      if (now.heads !== "mean") now.heads = now.heads.filter((h) => h < H);
      if (!now.heads.length) now.heads = [0];
      const held = document.activeElement?.dataset?.of && [document.activeElement.dataset.of, document.activeElement.dataset.value];
      const names = [...Array(H).keys(), "mean"].map((h) => {
        const label = make("span", "", make("span", "ax-dot"), h === "mean" ? "mean" : `${h}`);
        label.style.setProperty("--c", colour(h));
        return label;
      });
      bar.replaceChildren(
        choice("sentence", view.sentences.map((s) => s.name), "sentence", switchTo),
        choice("map", view.sentences[0].parts.map((p) => p.name), "part", switchPart),
        choice("layer", [...Array(N).keys()].map(String), "layer", (n) => { now.layer = n; draw(); }),
        choice("heads", H > 1 ? names : [], "head", (i) => { toggle(i === H ? "mean" : i); draw(); }, "ax-headline"));
      if (held) bar.querySelector(`[data-of="${held[0]}"][data-value="${held[1]}"]`)?.focus();
      bar.querySelectorAll('[data-of="head"]').forEach((b, h) => { b.style.setProperty("--c", colour(h === H ? "mean" : h)); });
      sides.forEach((box, side) => box.replaceChildren(...tokens(side).map((name, i) => {
        const one = button("ax-token", () => pick(side, i), make("b", "", name), make("i"));
        one.onpointermove = (event) => point(event, side, i);
        one.onpointerleave = leave;
        one.onfocus = () => { if (!focus && one.matches(":focus-visible")) pick(side, i); };  // by keyboard
        one.onkeydown = (event) => move(event, side, i);
        return one;
      })));
      text.replaceChildren(...(part().own ? [null] : [0, 1]).map((side) => make("p", "",
        ...(side === null ? [] : [make("small", "", side ? "keys" : "queries")]), ...tokens(side ?? 0).map((name, i) => {
          const one = make("span", "ax-word", make("b", "", name));
          const at = () => side ?? (focus ? focus[0] : 0);
          one.dataset.side = side ?? "";
          one.dataset.index = i;
          one.onclick = () => pick(at(), i);
          one.onpointermove = (event) => point(event, at(), i);
          one.onpointerleave = leave;
          return one;
        }))));
      experiments();
      draw();
    }

    function toggle(head) {
      if (head === "mean") now.heads = now.heads === "mean" ? [0] : "mean";
      else if (now.heads === "mean") now.heads = [head];
      else if (!now.heads.includes(head)) now.heads = [...now.heads, head].sort((a, b) => a - b);
      else if (now.heads.length > 1) now.heads = now.heads.filter((h) => h !== head);  // one stays
    }

    function switchPart(i) {
      [now.part, partner, causal] = [i, null, null];
      if (focus) focus = [0, Math.min(focus[1], tokens(0).length - 1)];
      build();
    }

    function switchTo(sentence) {                                     // stay at the same word where there is one
      const before = [tokens(0), tokens(1)];
      now.sentence = sentence;
      const same = (side, i) => tokens(side)[i] === before[side][i] || !tokens(side).includes(before[side][i])
        ? Math.min(i, tokens(side).length - 1) : tokens(side).indexOf(before[side][i]);
      if (focus) {
        if (partner !== null) partner = same(1 - focus[0], partner);
        focus = [focus[0], same(...focus)];
      }
      build();
    }

    function experiments() {
      const box = find(".ax-try"), K = part().head_dims[now.layer];
      box.hidden = !known(now.layer);
      const slider = make("input");
      Object.assign(slider, { type: "range", min: -4, max: 4, step: 0.1, value: Math.log2(tau) });
      slider.oninput = () => { tau = 2 ** slider.value; draw(); };
      const mask = button("ax-flat ax-mask", () => { causal = !own(); if (causal === isCausal(stored(now.layer)[0])) causal = null; draw(); }, "causal mask");
      const root = button("ax-flat ax-root", () => { tau = tau === K ** -0.5 ? 1 : K ** -0.5; draw(); }, `no division by √${K}`);
      const back = button("ax-flat ax-back", () => { tau = 1; causal = null; draw(); }, "as in the model");
      root.hidden = !K;
      mask.hidden = !part().own;
      box.replaceChildren(make("div", "ax-label"),
        make("label", "", "temperature", slider, make("output")), mask, root, back);
    }

    // --- what changes with layer, heads, token, mask and temperature ----------------------------------------------------
    function seen() {                                                 // what to show: what is chosen, unless the mouse points
      if (!pointed) return [focus, partner];
      if (focus && pointed[0] !== focus[0]) return [focus, pointed[1]];
      return [pointed, focus ? partner : null];
    }

    function draw() {
      const maps = shown().map((h) => map(now.layer, h)), [at, pair] = seen(), [T, S] = [maps[0].length, maps[0][0].length];
      const lists = at && maps.map((m) => column(m, ...at)), mean = at && average(lists);
      const near = at && (pair ?? best(mean)), nowhere = at && mean.every((w) => w === null);
      const state = { sentence: now.sentence, part: now.part, layer: now.layer };
      for (const b of bar.querySelectorAll("button")) {
        const value = Number(b.dataset.value), mine = value === count() ? "mean" : value;
        b.setAttribute("aria-pressed", b.dataset.of === "head" ? shown().includes(mine) : state[b.dataset.of] === value);
      }
      const lines = find(".ax-lines"), rows = Math.max(T, S);
      lines.setAttribute("viewBox", `0 0 100 ${ROW * rows}`);
      lines.style.height = `calc(var(--row) * ${rows})`;
      let drawn = "";
      maps.forEach((m, n) => m.forEach((row, i) => row.forEach((w, j) => {
        if (w === null || w < 0.01 || (at && at[1] !== (at[0] ? j : i))) return;
        const shift = 3.4 * (n - (maps.length - 1) / 2) / Math.max(1, (maps.length - 1) / 3);
        const [y, z] = [ROW * (i + 0.5) + shift, ROW * (j + 0.5) + shift], other = at && (at[0] ? i : j);
        const strength = !at ? 0.03 + 0.6 * w * w : (0.25 + 0.75 * w) * (pair === null || other === pair ? 1 : 0.45);
        drawn += `<path d="M0 ${y}C45 ${y} 55 ${z} 100 ${z}" data-weight="${w.toFixed(3)}" data-head="${shown()[n]}" `
          + `stroke="${colour(shown()[n])}" stroke-width="${(0.7 + (at ? 7 : 4) * w / Math.sqrt(maps.length)).toFixed(2)}" stroke-opacity="${strength.toFixed(2)}"/>`;
      })));
      lines.innerHTML = drawn;
      sides.forEach((box, side) => [...box.children].forEach((one, i) => {
        const empty = maps.every((m) => column(m, side, i).every((v) => v === null)), on = is(at, side, i);
        const w = at && at[0] !== side ? mean[i] : undefined;
        mark(one, on, at && at[0] !== side && near === i && !nowhere, w === null && !empty, at && at[0] !== side ? lists.map((l) => l[i]) : []);
        one.classList.toggle("ax-void", empty);
        one.setAttribute("aria-pressed", on);
        one.setAttribute("aria-label", `${tokens(side)[i]}, position ${i}` + (w === undefined ? "" : w === null ? ", masked" : `, weight ${written(w)}`));
        one.tabIndex = (focus ? is(focus, side, i) : is([0, 0], side, i)) ? 0 : -1;  // one stop, then arrow keys
        one.lastChild.textContent = w === undefined ? "" : written(w);
      }));
      for (const one of text.querySelectorAll(".ax-word")) {
        const i = Number(one.dataset.index), side = one.dataset.side === "" ? null : Number(one.dataset.side);
        const tinted = at && (side === null || side !== at[0]), on = at && at[1] === i && (side === null || side === at[0]);
        mark(one, on, tinted && near === i && !on && !nowhere, tinted && mean[i] === null && !nowhere, tinted ? lists.map((l) => l[i]) : []);
      }
      thumbnails();
      say(at, near, mean);
      chain(at, near, maps, lists);
      const K = part().head_dims[now.layer], changed = causal !== null || tau !== 1;
      const experiment = find(".ax-try"), root = experiment.querySelector(".ax-root");
      experiment.hidden = !known(now.layer);
      experiment.querySelector("input").value = Math.log2(tau);
      experiment.querySelector("output").textContent = tau.toFixed(2);
      experiment.querySelector(".ax-mask").setAttribute("aria-pressed", own());
      root.setAttribute("aria-pressed", tau === K ** -0.5);
      experiment.querySelector(".ax-back").hidden = !changed;
      experiment.querySelector(".ax-label").textContent = changed ? "Computed here for this map; the layers below stay as they were."
        : "What if? Another mask, another temperature:";
    }

    function mark(one, on, near, barred, values) {                     // tints in the heads' colours, side by side
      one.classList.toggle("ax-on", Boolean(on));
      one.classList.toggle("ax-near", Boolean(near));
      one.classList.toggle("ax-barred", Boolean(barred));
      const [most, power] = values.length > 1 ? [95, 0.55] : [55, 0.7], style = one.querySelector("b").style;  // in percent; under letters no more
      const tints = values.map((w, n) => `color-mix(in srgb, ${colour(shown()[n])} ${(w ? most * w ** power : 0).toFixed(1)}%, transparent) `
        + `${(100 * n / values.length).toFixed(1)}% ${(100 * (n + 1) / values.length).toFixed(1)}%`);
      style.backgroundImage = values.some((w) => w) ? `linear-gradient(90deg, ${tints})` : "";
      style.backgroundSize = values.length > 1 ? "100% 5px" : "";      // of several heads: a strip below the word
    }

    function say(at, near, mean) {                                     // what the lines say, in words
      const heads = now.heads === "mean" ? "mean of the heads" : now.heads.length > 1 ? `heads ${now.heads.join(", ")}` : count() > 1 ? `head ${now.heads[0]}` : "";
      const layer = layers().length > 1 ? `layer ${now.layer}` : "";
      const where = [part().name, layer, heads].filter((x) => x).join(" · ");
      const said = find(".ax-said"), name = at && make("b", "", word(...at));
      if (!at) return said.replaceChildren("Choose a word: on the left to see where it looks, on the right to see who looks at it.");
      const place = make("span", "ax-where", where && `${where}: `);
      if (mean.every((w) => w === null)) {
        return said.replaceChildren(place, name, ` (position ${at[1]}) `, at[0] ? "is masked: nobody looks at it." : "looks nowhere: every key is masked, all weights are 0.");
      }
      const most = mean.map((w, j) => [w, j]).filter(([w]) => w >= 0.01).sort((a, b) => b[0] - a[0]).slice(0, 3);
      said.replaceChildren(place, name, ` (position ${at[1]}) ${at[0] ? "is looked at most by" : "looks most at"} `
        + most.map(([w, j]) => `${word(1 - at[0], j)} ${written(w)}`).join(" · ") + (now.heads !== "mean" && now.heads.length > 1 ? ", on average." : "."));
    }

    function chain(at, near, maps, lists) {                            // from the dot product to the weight, for one pair
      const box = find(".ax-chain");
      box.hidden = !at || near === null;
      if (box.hidden) return;
      const [i, j] = at[0] ? [near, at[1]] : [at[1], near], a = known(now.layer), K = part().head_dims[now.layer];
      const number = (x) => (Math.abs(x) >= 1000 ? x.toPrecision(3) : x.toFixed(2)).replace("-", "−");
      const table = make("table"), steps = a ? [...(K ? ["q·k", `→ / √${K}`] : ["score"]), ...(tau === 1 ? [] : [tau === K ** -0.5 ? `→ × √${K}` : `→ / ${tau.toFixed(2)}`]), "→ softmax"] : ["weight"];
      table.append(make("tr", "", ...[count() > 1 ? "head" : "", ...steps].map((t) => make("th", "", t))));
      const heads = shown()[0] === "mean" ? [...Array(count()).keys(), "mean"] : shown();
      for (const h of heads) {
        const w = map(now.layer, h)[i][j], row = make("tr", ""), dot = make("span", "ax-dot");
        row.style.setProperty("--c", colour(h));
        const s = a && h !== "mean" ? a[h][i][j] / 1000 : null;
        const cells = !a ? [] : s === null ? steps.slice(1).map(() => "") : [...(K ? [number(s * Math.sqrt(K))] : []), number(s), ...(tau === 1 ? [] : [number(s / tau)])];
        row.append(...[dot, ...cells, w === null ? "masked, 0" : written(w)].map((c) => make("td", "", c)));
        if (count() > 1) row.firstChild.append(`${h}`);
        table.append(row);
      }
      const parts = [make("div", "ax-label", `how ${word(0, i)} (${i}) weighs ${word(1, j)} (${j})`), table];
      if (a && heads.length === 1) {
        const row = visible(stored(now.layer)[heads[0]])[i].map((yes, s) => yes ? a[heads[0]][i][s] / 1000 / tau : null).filter((x) => x !== null);
        const x = a[heads[0]][i][j] / 1000 / tau, sum = row.reduce((total, y) => total + Math.exp(y), 0), w = maps[0][i][j];
        const power = make("p", "ax-sum", "softmax: e", make("sup", "", number(x)), " = ", ...digits(Math.exp(x)), " of ", ...digits(sum),
          `, the sum over ${row.length} keys`);
        if (w !== null) parts.push(power);
      }
      parts.push(button("ax-turn", () => { turn(near); }, at[0] ? `Where does ${word(0, i)} look?` : `Who looks at ${word(1, j)}?`));
      box.replaceChildren(...parts);
    }

    function digits(x) {                                               // three digits, as text or as a power of ten
      if (x >= 1e-3 && x < 1e7) return [x >= 100 ? Number(x.toPrecision(3)).toLocaleString("en") : x.toPrecision(3)];
      const [mantissa, exponent] = x.toExponential(1).split("e");
      return [`${mantissa} · 10`, make("sup", "", exponent.replace("+", "").replace("-", "−"))];
    }

    function thumbnails() {                                            // every map small, a pixel for a weight
      const what = [now.sentence, now.part, tau, causal, dressed].join();
      if (what !== painted) paintThumbnails();
      painted = what;
      for (const one of find(".ax-heads").querySelectorAll("button")) {
        const [n, h] = one.dataset.shows.split(",");
        one.classList.toggle("ax-on", Number(n) === now.layer && shown().map(String).includes(h));
      }
    }

    function paintThumbnails() {
      const box = find(".ax-heads"), N = layers().length, H = count(), all = [...Array(H).keys(), ...(H > 1 ? ["mean"] : [])];
      const size = Math.max(matchMedia("(any-pointer: coarse)").matches ? 40 : 24, Math.min(46, Math.floor(210 / all.length)));
      box.parentNode.hidden = N * H === 1;
      box.style.gridTemplateColumns = `auto repeat(${all.length}, ${size}px)`;
      box.replaceChildren(make("span"), ...all.map((h) => make("span", "", `${h}`)));
      for (let n = 0; n < N; n++) box.append(make("span", "", `layer ${n}`), ...all.map((h) => thumbnail(n, h)));
    }

    function thumbnail(n, h) {
      const canvas = make("canvas"), m = map(n, h), paint = canvas.getContext("2d");
      const one = button("", () => { now.layer = n; now.heads = h === "mean" ? "mean" : [h]; pointed = null; draw(); }, canvas);
      [canvas.width, canvas.height] = [m[0].length, m.length];
      one.style.color = colour(h);
      m.forEach((row, i) => row.forEach((w, j) => {
        paint.globalAlpha = w === null ? 1 : Math.sqrt(w);
        paint.fillStyle = w === null ? "rgba(128, 128, 128, 0.22)" : inks[h === "mean" ? "mean" : h % view.colors.length];
        paint.fillRect(j, i, 1, 1);
      }));
      one.tabIndex = -1;                                               // the buttons above do the same by keyboard
      one.title = h === "mean" ? `layer ${n}, mean of heads` : `layer ${n}, head ${h}`;
      one.dataset.shows = [n, h];
      return one;
    }

    // --- mouse, touch, keyboard ----------------------------------------------------------------------------------------
    function point(event, side, i) {                                   // only if the mouse itself has moved
      const place = `${event.clientX},${event.clientY}`;
      if (event.pointerType === "touch" || place === mouse) return;
      mouse = place;
      if (is(pointed, side, i)) return;
      pointed = [side, i];
      draw();
    }
    function leave() {
      if (!pointed) return;
      pointed = null;
      draw();
    }

    function pick(side, i) {                                           // a click, a tap, the Enter key
      pointed = null;
      if (focus && side !== focus[0]) {
        if (partner === i) return turn(i);
        partner = i;
      } else if (is(focus, side, i)) focus = partner = null;
      else focus = [side, i];
      draw();
    }

    function turn(near) {                                              // from the row of the map to the column, or back
      const [side, i] = focus ?? seen()[0];
      [focus, partner, pointed] = [[1 - side, near], i, null];
      draw();
      sides[focus[0]].children[focus[1]].focus({ preventScroll: true });
    }

    function move(event, side, i) {
      const last = tokens(side).length - 1;
      const to = { ArrowUp: [side, i - 1], ArrowDown: [side, i + 1], Home: [side, 0], End: [side, last],
        ArrowLeft: [0, side ? null : i], ArrowRight: [1, side ? i : null] }[event.key];
      if (!to && event.key !== "Escape") return;
      event.preventDefault();                                         // do not scroll the page
      event.stopPropagation();                                        // nor move to the notebook's next cell
      pointed = null;
      if (!to) {
        if (partner !== null && focus) partner = null; else focus = null;
        draw();
        return focus && sides[focus[0]].children[focus[1]].focus();
      }
      if (!focus) focus = [side, i];
      const m = average(shown().map((h) => column(map(now.layer, h), ...focus)));
      let [there, index] = to;
      if (index === null) index = there === focus[0] ? focus[1] : partner ?? best(m) ?? 0;
      index = Math.max(0, Math.min(tokens(there).length - 1, index));
      if (there !== focus[0]) partner = index;
      else if (side === there) focus = [there, index];
      else partner = null;
      draw();
      sides[there].children[index].focus();
    }

    // --- light and dark: the colours of the page, also when they change ---------------------------------------------------
    const inks = {};
    function dress() {
      const ink = getComputedStyle(live).color;
      if (ink === dressed) return;
      dressed = ink;
      const paint = make("canvas").getContext("2d");
      paint.fillStyle = ink;
      paint.fillRect(0, 0, 1, 1);
      const [r, g, b] = paint.getImageData(0, 0, 1, 1).data, dark = r + g + b > 384;  // light letters: the page is dark
      live.classList.toggle("ax-dark", dark);
      view.colors.forEach((c, h) => {
        const mixed = c.match(/\w\w/g).map((x) => Math.round(dark ? 255 - 0.68 * (255 - parseInt(x, 16)) : parseInt(x, 16)));
        inks[h] = `rgb(${mixed})`;
        live.style.setProperty(`--h${h}`, inks[h]);
      });
      inks.mean = ink;
      thumbnails();
    }
    live.addEventListener("transitionend", (event) => { if (event.target === live) dress(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTimeout(dress));
    for (const page of [document.documentElement, document.body]) {
      new MutationObserver(() => setTimeout(dress)).observe(page, { attributes: true });
    }

    dress();
    build();
    live.hidden = false;
    root.querySelector(".ax-still").hidden = true;
    root.dataset.begun = "";
    dress();
  }
})();
