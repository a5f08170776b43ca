"use strict";
/* The tree of a search: a drawing that can be zoomed, moved and folded, or an indented list on
   narrow screens. A node opens in the drawer of node.js. */
(() => {
  const { element, svg, words } = cwm;
  const WIDTH = 148, HEIGHT = 26, COLUMN = 186, ROW = 36, MARGIN = 14;
  const MOST_ROWS = 45;  // with more rows the side branches are folded at first
  const FAR = 0.5;  // below this scale the text is unreadable and is left out
  const SMALLEST = 0.08, LARGEST = 2.5;

  const shareOf = value => (value === 1 ? "1.000" : Math.min(value, 0.999).toFixed(3));
  const scoreOf = node => (node.state === "no answer" ? "\u2013" : node.state === "bug" ? "fails" :
    (node.state === "solved" ? "\u2713 " : "") + shareOf(node.score));
  const label = node => `#${node.id} ${node.action}`;
  const STATES = { bug: "does not run" };
  const stateOf = node => STATES[node.state] || node.state;
  const described = node => `${label(node)}, ${stateOf(node)}, score ${shareOf(node.score)}` +
    (node.best ? ", the best" : "");

  /* Children by node, the path to the best node, and the folded nodes. */
  function forest(data) {
    const byId = new Map(data.nodes.map(node => [node.id, node]));
    const children = new Map([[data.root, []], ...data.nodes.map(node => [node.id, []])]);
    for (const node of data.nodes) children.get(byId.has(node.parent) ? node.parent : data.root)
      .push(node);
    const best = data.nodes.find(node => node.best), path = new Set();
    for (let node = best; node; node = byId.get(node.parent)) path.add(node.id);
    const folded = new Set();

    function* visible(parent = data.root, depth = 0) {
      for (const node of children.get(parent)) {
        yield { node, depth };
        if (!folded.has(node.id)) yield* visible(node.id, depth + 1);
      }
    }
    function* below(id) {
      for (const node of children.get(id)) { yield node; yield* below(node.id); }
    }
    function foldSides() {
      for (const node of data.nodes)
        if (children.get(node.id).length && !path.has(node.id)) folded.add(node.id);
    }
    function show(node) {
      for (let each = byId.get(node.parent); each; each = byId.get(each.parent))
        folded.delete(each.id);
    }
    const leaves = data.nodes.filter(node => !children.get(node.id).length).length;
    if (leaves > MOST_ROWS) foldSides();
    return { byId, children, path, best, folded, visible, below, foldSides, show };
  }

  function hidden(trees, node) {
    const all = [...trees.below(node.id)];
    return { count: all.length, best: Math.max(...all.map(each => each.score)) };
  }

  /* Left to right: a column per step from the root, a parent in the middle of its children. */
  function placed(trees, root) {
    const places = new Map();
    let row = 0;
    function place(node, depth) {
      const inner = trees.folded.has(node.id) ? [] : trees.children.get(node.id);
      const ys = inner.map(child => place(child, depth + 1));
      const y = ys.length ? (ys[0] + ys[ys.length - 1]) / 2 : row++ * ROW;
      places.set(node.id, { node, x: depth * COLUMN, y, depth });
      return y;
    }
    for (const node of trees.children.get(root)) place(node, 0);
    return places;
  }

  function nodeMark(trees, node, { x, y, depth }) {
    const kids = trees.children.get(node.id).length, isFolded = trees.folded.has(node.id);
    const radius = node.asked ? HEIGHT / 2 : 4;
    const box = { width: WIDTH, height: HEIGHT, rx: radius };
    const group = svg("g", {
      class: `node ${node.state.replace(" ", "-")}${trees.path.has(node.id) ? " on-path" : ""}` +
        (node.best ? " best" : "") + (node.asked ? "" : " unasked"),
      transform: `translate(${x} ${y})`, role: "treeitem", tabindex: -1, "data-node": node.id,
      "aria-level": depth + 1, "aria-expanded": kids ? String(!isFolded) : null,
      "aria-label": described(node),
    },
    svg("title", {}, described(node)),
    svg("rect", { class: "box", ...box }),
    svg("clipPath", { id: `clip-${node.id}` }, svg("rect", box)),
    svg("rect", { class: "filled", width: WIDTH * Math.max(0, Math.min(1, node.score)),
      height: HEIGHT, "clip-path": `url(#clip-${node.id})` }),
    svg("rect", { class: "edge", ...box }),
    svg("text", { class: "name", x: 12, y: HEIGHT / 2 }, label(node).slice(0, 15)),
    svg("text", { class: "score", x: WIDTH - 11, y: HEIGHT / 2 }, scoreOf(node)));
    if (kids) {
      const count = isFolded ? hidden(trees, node).count : 0;
      group.append(svg("g", { class: "fold", "data-fold": node.id,
        transform: `translate(${WIDTH + 13} ${HEIGHT / 2})` },
      svg("title", {}, isFolded ? `unfold ${count} nodes` : "fold the nodes below"),
      svg("circle", { r: isFolded ? 11 : 7 }),
      svg("text", {}, isFolded ? `+${count}` : "\u2212")));
    }
    return group;
  }

  function links(trees, places) {
    return [...places.values()].filter(({ node }) => places.has(node.parent))
      .sort((a, b) => trees.path.has(a.node.id) - trees.path.has(b.node.id))
      .map(({ node, x, y }) => {
        const from = places.get(node.parent), bend = (COLUMN - WIDTH) / 2;
        const start = from.x + WIDTH, middle = y + HEIGHT / 2, before = from.y + HEIGHT / 2;
        return svg("path", { class: trees.path.has(node.id) ? "link on-path" : "link",
          d: `M${start} ${before}C${start + bend} ${before} ${x - bend} ${middle} ${x} ${middle}` });
      });
  }

  /* Position and scale of the drawing: changed by dragging, wheel, two fingers, buttons, keys. */
  function camera(canvas, world, size, uncovered) {
    const at = { x: MARGIN, y: MARGIN, scale: 1 };
    function apply() {
      world.setAttribute("transform", `translate(${at.x} ${at.y}) scale(${at.scale})`);
      canvas.classList.toggle("far", at.scale < FAR);
    }
    const middle = () => ({ x: canvas.clientWidth / 2, y: canvas.clientHeight / 2 });
    function zoom(factor, { x, y } = middle()) {
      const scale = Math.max(SMALLEST, Math.min(LARGEST, at.scale * factor));
      at.x = x - (x - at.x) * scale / at.scale;
      at.y = y - (y - at.y) * scale / at.scale;
      at.scale = scale;
      apply();
    }
    function move(x, y) { at.x += x; at.y += y; apply(); }
    function fit() {
      const { width, height } = size();
      at.scale = Math.max(SMALLEST, Math.min(1,
        (canvas.clientWidth - 2 * MARGIN) / width, (canvas.clientHeight - 2 * MARGIN) / height));
      at.x = Math.max(MARGIN, (canvas.clientWidth - width * at.scale) / 2);
      at.y = Math.max(MARGIN, (canvas.clientHeight - height * at.scale) / 2);
      if (width * at.scale < canvas.clientWidth / 2) at.x = MARGIN;
      apply();
    }
    function reveal({ x, y }, centre) {
      const left = at.x + x * at.scale, top = at.y + y * at.scale;
      const right = left + (WIDTH + 30) * at.scale, bottom = top + HEIGHT * at.scale;
      const { clientHeight: height } = canvas, width = uncovered();
      if (!centre && left >= 0 && top >= 0 && right <= width && bottom <= height) return;
      at.x = within(at.x + width / 2 - (left + right) / 2, width, size().width);
      at.y = within(at.y + height / 2 - (top + bottom) / 2, height, size().height);
      apply();
    }
    /* Keep the empty space on both sides as small as possible. */
    const within = (start, room, length) => Math.min(MARGIN,
      Math.max(start, room - length * at.scale - MARGIN));
    const inside = event => {
      const box = canvas.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const fingers = new Map();
    canvas.addEventListener("wheel", event => {
      // Without focus the wheel scrolls the page. A pinch on a touchpad sends ctrl.
      if (!event.ctrlKey && !canvas.contains(document.activeElement)) return;
      event.preventDefault();
      zoom(Math.exp(-event.deltaY * (event.ctrlKey ? 0.01 : 0.0015)), inside(event));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      fingers.set(event.pointerId, { ...inside(event), moved: 0 });
    });
    canvas.addEventListener("pointermove", event => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const now = { ...inside(event), moved: before.moved };
      now.moved += Math.hypot(now.x - before.x, now.y - before.y);
      const others = [...fingers].filter(([id]) => id !== event.pointerId);
      if (others.length === 1) {
        const [, other] = others[0];
        const apart = one => Math.hypot(one.x - other.x, one.y - other.y) || 1;
        zoom(apart(now) / apart(before), { x: (now.x + other.x) / 2, y: (now.y + other.y) / 2 });
      } else if (!others.length && now.moved > 4) {
        if (!canvas.hasPointerCapture(event.pointerId)) canvas.setPointerCapture(event.pointerId);
        move(now.x - before.x, now.y - before.y);
        canvas.classList.add("dragged");
      }
      fingers.set(event.pointerId, now);
    });
    for (const name of ["pointerup", "pointercancel", "lostpointercapture"])
      canvas.addEventListener(name, event => {
        fingers.delete(event.pointerId);
        setTimeout(() => canvas.classList.remove("dragged"));
      });
    apply();
    return { zoom, move, fit, reveal, at };
  }

  function legend() {
    const entry = (name, text) => element("span", {}, element("i", { class: `key ${name}` }), text);
    return element("div", { class: "legend" }, entry("solved", "solved"), entry("runs", "runs"),
      entry("bug", "does not run"), entry("no-answer", "no answer"),
      entry("unasked", "no completion used"), entry("on-path", "path to the best"));
  }

  cwm.draw.tree = (place, data) => {
    if (!data.nodes.length) {
      place.append(element("p", { class: "quiet" }, "There are no nodes yet."));
      return;
    }
    const trees = forest(data), drawer = cwm.drawer(data, walk);
    let current = trees.best || data.nodes[0], places = new Map(), asList = cwm.narrow.matches;

    const world = svg("g", {});
    const canvas = svg("svg", { class: "canvas", role: "tree", "aria-label": "Search tree" }, world);
    const list = element("ul", { class: "list", role: "tree", "aria-label": "Search tree" });
    const size = () => ({
      width: Math.max(...[...places.values()].map(one => one.x)) + WIDTH + 30,
      height: Math.max(...[...places.values()].map(one => one.y)) + HEIGHT,
    });
    const view = camera(canvas, world, size, () => drawer.beside(canvas));
    const button = (text, name, action, kind) =>
      element("button", { type: "button", "aria-label": name, title: name, class: kind || null,
        onclick: action }, text);
    const asDrawing = "drawing";
    const bar = element("div", { class: "tools" },
      button("+", "zoom in", () => view.zoom(1.3), asDrawing),
      button("\u2212", "zoom out", () => view.zoom(1 / 1.3), asDrawing),
      button("fit", "show the whole tree", () => view.fit(), asDrawing),
      button("best", "go to the best node", () => {
        trees.show(trees.best); current = trees.best; layOut(); focus(true);
      }),
      button("fold", "fold all but the path to the best", () => {
        trees.foldSides(); layOut(); view.fit();
      }),
      button("unfold", "unfold all", () => { trees.folded.clear(); layOut(); view.fit(); }),
      button("list", "draw as a list, or as a tree", () => { asList = !asList; apply(); }, "kind"));
    place.append(element("div", { class: "tree" }, element("div", { class: "tools" }, bar, legend()),
      canvas, list));

    function layOut() {
      places = placed(trees, data.root);
      if (!places.has(current.id)) {
        while (!places.has(current.id)) current = trees.byId.get(current.parent);
      }
      world.replaceChildren(...links(trees, places),
        ...[...places.values()].map(one => nodeMark(trees, one.node, one)));
      list.replaceChildren(...[...trees.visible()].map(line));
      const { width, height } = size();
      const scale = Math.min(1, (canvas.clientWidth - 2 * MARGIN) / width);
      canvas.style.height = `${Math.max(2 * HEIGHT, height * scale) + 2 * MARGIN}px`;
      mark();
    }
    function line({ node, depth }) {
      const kids = trees.children.get(node.id).length, isFolded = trees.folded.has(node.id);
      const inner = isFolded ? hidden(trees, node) : null;
      return element("li", { role: "treeitem", tabindex: -1, "data-node": node.id,
        class: `${node.state.replace(" ", "-")}${trees.path.has(node.id) ? " on-path" : ""}`,
        "aria-level": depth + 1, "aria-expanded": kids ? String(!isFolded) : null,
        "aria-label": described(node), style: `padding-left: ${Math.min(depth, 9) * 14}px` },
      kids ? element("span", { class: "fold", "data-fold": node.id }, isFolded ? "\u25b8" : "\u25be")
        : element("span", { class: "fold none" }),
      element("span", { class: "name" }, label(node), node.best ? " \u2605" : ""),
      inner ? element("span", { class: "quiet" }, `+${inner.count}, to ${shareOf(inner.best)}`) : null,
      element("span", { class: "state" }, node.state === "runs" ? "" : stateOf(node)),
      element("span", { class: "score" }, shareOf(node.score)));
    }
    const shown = () => (asList ? list : canvas);
    const markOf = node => shown().querySelector(`[data-node="${node.id}"]`);
    function mark() {
      for (const one of place.querySelectorAll("[data-node]")) {
        const isCurrent = Number(one.dataset.node) === current.id;
        one.setAttribute("tabindex", isCurrent ? 0 : -1);
        one.classList.toggle("current", isCurrent && drawer.isOpen());
      }
    }
    function focus(centre) {
      mark();
      if (drawer.isOpen()) open();
      if (!asList) view.reveal(places.get(current.id), centre);
      markOf(current).focus({ preventScroll: !asList });
    }
    function open() {
      drawer.open(current);
      mark();
      if (!asList) view.reveal(places.get(current.id));
    }
    function fold(node) {
      if (!trees.children.get(node.id).length) return;
      if (!trees.folded.delete(node.id)) trees.folded.add(node.id);
      current = node;
      layOut();
      markOf(current).focus({ preventScroll: true });
    }
    /* The node that an arrow key selects. */
    function neighbour(key) {
      const kids = trees.children.get(current.id);
      if (key === "ArrowLeft") return trees.byId.get(current.parent);
      if (key === "ArrowRight") {
        if (kids.length && trees.folded.delete(current.id)) layOut();
        return kids[0];
      }
      const here = places.get(current.id);
      const row = asList ? [...trees.visible()].map(one => one.node) :
        [...places.values()].filter(one => one.depth === here.depth).sort((a, b) => a.y - b.y)
          .map(one => one.node);
      if (key === "Home") return row[0];
      if (key === "End") return row[row.length - 1];
      return row[row.indexOf(current) + (key === "ArrowDown" ? 1 : -1)];
    }
    function walk(key) {
      const next = neighbour(key);
      if (next) { current = next; focus(false); }
    }
    const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];
    place.addEventListener("keydown", event => {
      if (!shown().contains(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
      if (ARROWS.includes(event.key)) walk(event.key);
      else if (event.key === "Enter") open();
      else if (event.key === " ") fold(current);
      else if (event.key === "Escape") drawer.close();
      else if (asList) return;
      else if (event.key === "+" || event.key === "=") view.zoom(1.3);
      else if (event.key === "-") view.zoom(1 / 1.3);
      else if (event.key === "0") view.fit();
      else return;
      event.preventDefault();
    });
    place.addEventListener("click", event => {
      if (canvas.contains(event.target)) markOf(current).focus({ preventScroll: true });
      if (canvas.classList.contains("dragged")) return;
      const target = event.target.closest("[data-fold], [data-node]");
      if (!target) return;
      const found = trees.byId.get(Number(target.dataset.fold || target.dataset.node));
      if (target.dataset.fold !== undefined) { fold(found); return; }
      current = found;
      markOf(current).focus({ preventScroll: true });
      open();
    });
    function apply() {
      place.firstChild.classList.toggle("as-list", asList);
      place.querySelector("button.kind").textContent = asList ? "tree" : "list";
      if (!asList) start();
    }
    function start() {
      view.fit();
      if (view.at.scale >= FAR) return;
      view.zoom(0.8 / view.at.scale);
      view.reveal(places.get((places.has(trees.best.id) ? trees.best : current).id), true);
    }
    cwm.narrow.addEventListener("change", () => { asList = cwm.narrow.matches; apply(); });
    drawer.onclose = () => { mark(); markOf(current).focus({ preventScroll: true }); };
    layOut();
    apply();
    const named = /^#node-(\d+)$/.exec(location.hash);
    if (named && trees.byId.has(Number(named[1]))) {
      current = trees.byId.get(Number(named[1]));
      trees.show(current);
      layOut();
      focus(true);
      open();
    }
  };
})();
