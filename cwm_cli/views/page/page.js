"use strict";
/* The page: helpers of all scripts, the head of the page, and the simple kinds of section.
   Foreign text goes through createTextNode only. `cwm.draw.KIND(element, data)` draws a section
   of the kind KIND; the other scripts add more kinds. */
const cwm = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function filled(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined)
        node.setAttribute(name, String(value));
    }
    for (const child of children.flat())
      if (child !== null && child !== undefined)
        node.append(child instanceof Node ? child : document.createTextNode(String(child)));
    return node;
  }
  const element = (tag, attributes, ...children) =>
    filled(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) =>
    filled(document.createElementNS(SVG, tag), attributes, children);

  /* Screens of the width of a phone. */
  const narrow = window.matchMedia("(max-width: 640px)");

  function words(value) {
    if (value === null || value === undefined || value === "") return "\u2013";
    if (typeof value === "number") return cwm.figure(value);
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (Array.isArray(value)) return value.map(words).join(", ") || "none";
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  }

  /* The words of Python that are highlighted. */
  const KEYWORDS = new Set(("False None True and as assert async await break class continue def del " +
    "elif else except finally for from global if import in is lambda nonlocal not or pass raise " +
    "return try while with yield match case").split(" "));
  const BUILTINS = new Set(("abs all any bool dict enumerate filter float frozenset int isinstance " +
    "len list map max min next object print range reversed round self set sorted str sum super " +
    "tuple type zip").split(" "));
  const TOKEN = new RegExp([
    "(#[^\\n]*)",
    "([rbfuRBFU]{0,2}(?:\"\"\"[^]*?(?:\"\"\"|$)|'''[^]*?(?:'''|$)" +
      "|\"(?:\\\\.|[^\"\\\\\\n])*\"?|'(?:\\\\.|[^'\\\\\\n])*'?))",
    "(\\b\\d[\\d_]*(?:\\.[\\d_]*)?(?:[eE][+-]?\\d+)?j?\\b|\\.\\d+\\b)",
    "([A-Za-z_]\\w*)",
  ].join("|"), "g");

  function highlighted(text) {
    const found = document.createDocumentFragment();
    let end = 0, before = "";
    for (const match of text.matchAll(TOKEN)) {
      const [whole, comment, string, number, name] = match;
      const kind = comment ? "c" : string ? "s" : number ? "n" : KEYWORDS.has(name) ? "k" :
        before === "def" || before === "class" ? "d" : BUILTINS.has(name) ? "b" : "";
      before = name || "";
      if (!kind) continue;
      if (match.index > end) found.append(text.slice(end, match.index));
      found.append(element("span", { class: `t-${kind}` }, whole));
      end = match.index + whole.length;
    }
    found.append(text.slice(end));
    return found;
  }

  /* A program with line numbers; the line of an error is marked. */
  function code(text, marked) {
    const count = text.replace(/\n$/, "").split("\n").length;
    const numbers = Array.from({ length: count }, (_, place) =>
      [place + 1 === marked ? element("span", { class: "marked" }, marked) : place + 1, "\n"]).flat();
    return element("div", { class: "code", tabindex: "0" },
      element("pre", { class: "numbers", "aria-hidden": "true" }, numbers),
      element("pre", { class: "lines" }, highlighted(text)));
  }

  function copier(text) {
    const button = element("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "copied"; }
      catch { button.textContent = "not allowed"; }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    } }, "copy");
    return button;
  }

  /* A line in which `words` in backquotes are code. */
  const quoted = line => String(line).split(/`([^`]+)`/).map((words, place) =>
    (place % 2 ? element("code", {}, words) : words));

  const draw = {
    facts(place, data) {
      place.append(element("dl", { class: "facts" }, data.rows.map(([name, value]) =>
        element("div", { class: words(value).length > 40 ? "wide" : null },
          element("dt", {}, name), element("dd", {}, words(value))))));
    },
    notes(place, data) {
      place.append(element("ul", { class: "notes" }, data.lines.map(line =>
        element("li", {}, quoted(line)))));
    },
    program(place, data) {
      place.append(element("div", { class: "program" },
        element("header", {}, element("code", {}, data.name || ""), copier(data.text)),
        code(data.text),
        (data.gaps || []).length ? element("div", { class: "gaps" },
          element("strong", {}, "Not covered by the data"),
          element("ul", { class: "notes" }, data.gaps.map(gap => element("li", {}, quoted(gap))))) : null));
    },
    panels(place, data) {
      place.append(element("div", { class: "panels" }, data.sections.map(([title, kind, inner]) => {
        const panel = element("div", {}, element("h3", {}, title));
        drawn(panel, kind, inner);
        return panel;
      })));
    },
  };

  function drawn(place, kind, data) {
    if (Object.hasOwn(draw, kind)) draw[kind](place, data);
    else place.append(element("pre", { class: "raw" }, JSON.stringify(data, null, 1)));
  }

  /* Light, dark or automatic; stored if the browser allows it. */
  const THEMES = ["auto", "light", "dark"];
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function remembered(value) {
    try {
      if (value) localStorage.setItem("cwm-theme", value);
      return localStorage.getItem("cwm-theme");
    } catch { return null; }
  }

  function themeSwitch() {
    let theme = THEMES.includes(remembered()) ? remembered() : "auto";
    const button = element("button", { type: "button", id: "theme", onclick: () => {
      theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
      remembered(theme);
      apply();
    } });
    function apply() {
      const shown = theme === "auto" ? (dark.matches ? "dark" : "light") : theme;
      document.documentElement.dataset.theme = shown;
      button.textContent = `theme: ${theme}`;
    }
    dark.addEventListener("change", apply);
    apply();
    return button;
  }

  function head(page) {
    const top = document.getElementById("top");
    top.append(element("div", { class: "above" },
      element("h1", {}, page.title), themeSwitch()));
    if (page.verdict) {
      const [outcome, ...spent] = page.verdict.split(" \u00b7 ");
      top.append(element("p", { class: "outcome" }, element("strong", {}, outcome),
        spent.length ? element("span", { class: "quiet" }, spent.join(" \u00b7 ")) : null));
    }
    draw.facts(top, { rows: page.facts });
    for (const line of page.damage)
      top.append(element("p", { class: "damage", role: "note" }, line));
    const titled = page.sections.map((section, place) => [section.title, place])
      .filter(([title]) => title);
    if (titled.length > 1)
      top.after(element("nav", { id: "contents", "aria-label": "Sections" },
        titled.map(([title, place]) => element("a", { href: `#section-${place}` }, title))));
    document.getElementById("foot").append(`Written by ${page.written}. ` +
      "The page is this one file and needs no network.");
  }

  function show() {
    const page = JSON.parse(document.getElementById("data").textContent);
    head(page);
    const main = document.getElementById("page");
    page.sections.forEach((section, place) => {
      const body = element("div", { class: "body" });
      main.append(element("section", { id: `section-${place}`, "data-kind": section.kind },
        section.title ? element("h2", {}, section.title) : null,
        section.about ? element("p", { class: "about" }, section.about) : null, body));
      drawn(body, section.kind, section.data);
    });
  }
  document.addEventListener("DOMContentLoaded", show);

  return { draw, drawn, element, svg, words, code, highlighted, copier, narrow };
})();
