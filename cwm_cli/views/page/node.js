"use strict";
/* The drawer that shows one node: verdict, program, difference, prompt and completion.
   The texts are compressed; the first node that is opened decompresses them. */
(() => {
  const { element, words } = cwm;
  const TABS = ["Program", "Difference", "Prompt", "Completion"];

  async function unpacked(packed) {
    const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  /* A unified difference: added lines are green, removed lines are red. */
  function difference(lines) {
    const kind = line => (line.startsWith("@@") ? "hunk" : line[0] === "+" ? "came" :
      line[0] === "-" ? "went" : "same");
    return element("div", { class: "code difference", tabindex: "0" },
      element("pre", { class: "lines" }, lines.slice(2).map(line => {
        const sort = kind(line), row = element("span", { class: sort });
        if (sort === "hunk") row.append(line);
        else row.append(element("b", {}, line[0] || " "), cwm.highlighted(line.slice(1)));
        return row;
      })));
  }

  const plain = text => element("pre", { class: "raw" }, text);
  const nothing = text => element("p", { class: "quiet" }, text);

  function panes(node, joined) {
    const program = joined(node.program);
    return {
      Program: () => (program ? element("div", { class: "program" },
        element("header", {}, element("span", { class: "quiet" },
          `${program.split("\n").length} lines`), cwm.copier(program)),
        cwm.code(program, node.failure && node.failure.line)) :
        nothing("There is no program in the completion.")),
      Difference: () => {
        if (node.difference === null) return nothing(node.has_parent ?
          "The programs are too long to compare." : "Written from scratch: there is no parent.");
        const text = joined(node.difference);
        return text ? element("div", { class: "program" }, difference(text.split("\n"))) :
          nothing("The program equals that of its parent.");
      },
      Prompt: () => (node.prompt ? element("div", {}, node.prompt.map(([role, text]) =>
        element("div", { class: "message" }, element("h3", {}, role), plain(joined(text))))) :
        nothing(node.no_prompt)),
      Completion: () => {
        const text = joined(node.completion);
        return text ? plain(text) : nothing(node.asked ? "The completion is empty." : "No completion: a refiner or a start program wrote this.");
      },
    };
  }

  function verdict(node, joined) {
    const findings = joined(node.findings);
    return [
      element("dl", { class: "figures" }, node.figures.map(([name, value]) =>
        element("div", {}, element("dt", {}, name), element("dd", {}, words(value))))),
      node.failure ? element("div", { class: `failure ${node.state.replace(" ", "-")}` },
        element("strong", {}, node.failure.kind.replaceAll("_", " ") +
          (node.failure.line ? `, line ${node.failure.line}` : "")),
        element("pre", {}, node.failure.message)) : null,
      findings ? element("details", { class: "findings" }, element("summary", {}, "Findings"),
        plain(findings)) : null,
    ];
  }

  cwm.drawer = (data, walk) => {
    let texts = null, tab = null, turn = 0;
    const ids = new Set(data.nodes.map(node => node.id));
    const title = element("h2", { id: "drawer-title" });
    const about = element("div", { class: "verdict" });
    const tabs = element("div", { class: "tabs", role: "tablist" });
    const body = element("div", { class: "pane", role: "tabpanel" });
    const close = element("button", { type: "button", "aria-label": "close", onclick: shut },
      "\u00d7");
    const panel = element("aside", { class: "drawer", role: "dialog", hidden: true,
      "aria-labelledby": "drawer-title" },
    element("header", {}, title, close), element("div", { class: "inside" }, about, tabs, body));
    document.body.append(panel);
    const self = { open, close: shut, isOpen: () => !panel.hidden, beside,
      onclose: () => {} };

    /* The width of an element left of the drawer; the whole width if less than 240 pixels are left. */
    function beside(other) {
      const { left, width } = other.getBoundingClientRect();
      const free = panel.hidden ? width : panel.getBoundingClientRect().left - left;
      return free > 240 ? Math.min(width, free) : width;
    }

    function hash(value) {
      try { history.replaceState(null, "", value || location.pathname); } catch { /* not allowed */ }
    }
    function shut() {
      if (panel.hidden) return;
      panel.hidden = true;
      document.body.classList.remove("with-drawer");
      hash("");
      self.onclose();
    }
    function choose(name, made) {
      for (const each of tabs.children)
        each.setAttribute("aria-selected", String(each.textContent === name));
      body.replaceChildren(made[name]());
    }
    async function open(node) {
      const mine = ++turn;
      node.has_parent = ids.has(node.parent);
      panel.hidden = false;
      document.body.classList.add("with-drawer");
      hash(`#node-${node.id}`);
      title.replaceChildren(`#${node.id} ${node.action}`,
        element("small", {}, (node.has_parent ? `of #${node.parent}` : "from scratch") +
          ` \u00b7 ${node.state}${node.best ? " \u00b7 the best" : ""}`));
      try {
        texts = texts || await unpacked(data.packed);
      } catch {
        body.replaceChildren(nothing("This browser cannot decompress the texts: use a newer one."));
        return;
      }
      if (mine !== turn) return;  // another node was opened in the meantime
      const joined = places => (places || []).map(place => texts[place]).join("");
      const made = panes(node, joined);
      about.replaceChildren(...verdict(node, joined).filter(Boolean));
      tabs.replaceChildren(...TABS.map(name => element("button", { type: "button", role: "tab",
        onclick: () => { tab = name; choose(name, made); } }, name)));
      choose(tab || (node.has_parent ? "Difference" : "Program"), made);
      panel.querySelector(".inside").scrollTop = 0;
    }
    panel.addEventListener("keydown", event => {
      if (event.key === "Escape") { shut(); event.preventDefault(); }
      const isText = event.target.closest(".code, .raw");
      if (event.altKey && event.key.startsWith("Arrow") && !isText) {
        walk(event.key);
        event.preventDefault();
      }
    });
    return self;
  };
})();
