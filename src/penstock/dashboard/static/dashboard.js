// Pages work without this file. With it they are live, ask in a dialog, and can be used from the keyboard.
"use strict";

(() => {
  const root = document.documentElement;
  const base = document.querySelector('meta[name="base"]').content;
  root.classList.add("js");

  // --- live: one feed of samples; every sample refreshes the page, unless the user is busy on it -----------------

  const status = document.getElementById("live-status");
  const pauseButton = document.getElementById("live-pause");
  let feed = null;
  let isPaused = sessionStorage.getItem("paused") === "yes";

  function isBusy() {
    // Do not change what the user is selecting, copying, editing or confirming.
    const live = document.getElementById("live");
    const focused = document.activeElement;
    return Boolean(
      live?.querySelector('input[type="checkbox"]:checked, textarea')
      || document.querySelector("dialog[open]")
      || !getSelection().isCollapsed
      || (live?.contains(focused) && focused.matches('select, input:not([type="checkbox"])')),
    );
  }

  function tell(state, text) {
    if (!status) return;
    status.dataset.state = state;
    status.textContent = text;
  }

  function connect() {
    if (feed || isPaused || document.hidden || !status) return;
    feed = new EventSource(`${base}/events`);
    feed.addEventListener("history", (event) => charts.replace(JSON.parse(event.data)));
    feed.addEventListener("sample", (event) => {
      charts.add(JSON.parse(event.data));
      if (isBusy()) {
        tell("paused", "paused while you select");
      } else {
        tell("live", "live");
        htmx.trigger(document.body, "sample");
      }
    });
    feed.onopen = () => tell("live", "live");
    feed.onerror = () => tell("lost", "reconnecting");
  }

  function disconnect() {
    feed?.close();
    feed = null;
  }

  function setPaused(paused) {
    isPaused = paused;
    sessionStorage.setItem("paused", paused ? "yes" : "no");
    showPaused();
    if (paused) disconnect();
    else connect();
  }

  function showPaused() {
    if (!pauseButton) return;
    pauseButton.textContent = isPaused ? "resume" : "pause";
    if (isPaused) tell("paused", "paused");
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : connect()));
  addEventListener("pagehide", disconnect);
  pauseButton?.addEventListener("click", () => setPaused(!isPaused));

  // --- charts ------------------------------------------------------------------------------------------------------

  const formats = {
    count: (value) => compact(value, 1000, ["", "k", "M", "G", "T"]),
    rate: (value) => `${compact(value, 1000, ["", "k", "M", "G", "T"])}/s`,
    bytes: (value) => compact(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]),
  };

  function compact(value, step, units) {
    let unit = 0;
    while (Math.abs(value) >= step && unit < units.length - 1) {
      value /= step;
      unit += 1;
    }
    return `${value >= 100 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)}${units[unit]}`;
  }

  // As everywhere else on the pages.
  const utc = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

  const charts = {
    samples: [],
    plots: [],

    replace(samples) {
      this.samples = samples;
      this.draw();
    },

    add(sample) {
      this.samples.push(sample);
      if (this.samples.length > 360) this.samples.shift();
      this.plots.forEach(({ plot, names }) => plot.setData(this.columns(names)));
      this.label();
    },

    columns(names) {
      return [this.samples.map((each) => each.at), ...names.map((name) => this.samples.map((each) => each[name]))];
    },

    label() {
      const last = this.samples.at(-1);
      if (!last) return;
      document.querySelectorAll("[data-last]").forEach((element) => {
        const value = last[element.dataset.last];
        const format = formats[element.closest("[data-format]").dataset.format];
        element.textContent = value === null || value === undefined ? "–" : format(value);
      });
    },

    draw() {
      this.plots.forEach(({ plot }) => plot.destroy());
      this.plots = [...document.querySelectorAll("[data-chart]")].map((figure) => this.plot(figure));
      this.label();
    },

    plot(figure) {
      const names = figure.dataset.chart.split(" ");
      const place = figure.querySelector(".plot");
      const colours = [...figure.querySelectorAll("i")].map((mark) => getComputedStyle(mark).backgroundColor);
      const style = getComputedStyle(figure);
      const muted = getComputedStyle(figure.querySelector("figcaption")).color;
      const axis = { stroke: muted, font: `11px ${style.fontFamily}`, ticks: { show: false } };
      const options = {
        width: place.clientWidth,
        height: place.clientHeight,
        padding: [8, 26, 0, 0], // the last time of the axis is centred on its place
        cursor: { show: false },
        legend: { show: false },
        scales: { y: { range: (plot, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [
          { ...axis, size: 22, space: 80, grid: { show: false }, values: (plot, marks) => marks.map(utc) },
          {
            ...axis, size: 58, space: 30, grid: { stroke: style.borderTopColor, width: 1 },
            values: (plot, marks) => marks.map(formats[figure.dataset.format]),
          },
        ],
        series: [{}, ...names.map((name, index) => ({
          stroke: colours[index], width: 1.5, points: { show: false }, spanGaps: false,
        }))],
      };
      return { names, plot: new uPlot(options, this.columns(names), place) };
    },
  };

  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => charts.draw(), 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.draw());

  // --- theme: kept in a cookie, so that the server renders it and nothing flashes --------------------------------------

  document.getElementById("theme")?.addEventListener("change", (event) => {
    const theme = event.target.value;
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    document.cookie = `penstock_theme=${theme}; path=${base || "/"}; max-age=31536000; samesite=strict`;
    charts.draw();
  });

  // --- dialogs: whatever changes something asks first -----------------------------------------------------------------

  const dialog = document.getElementById("dialog");

  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form[data-confirm]");
    if (!form) return;
    event.preventDefault();
    // Of a button without the attribute, formAction is the address of the page.
    const url = new URL(event.submitter?.hasAttribute("formaction") ? event.submitter.formAction : form.action);
    const given = new FormData(form, event.submitter);
    const shown = { target: "#dialog", select: ".confirm" };
    if (form.method === "post") { // a payload is too long for an address
      htmx.ajax("POST", url.pathname, { ...shown, values: Object.fromEntries(given) });
      return;
    }
    for (const [name, value] of given) url.searchParams.append(name, value);
    htmx.ajax("GET", url.pathname + url.search, shown);
  });
  document.body.addEventListener("htmx:beforeSwap", (event) => {
    // The user may have started to select while the page was fetched.
    if (event.detail.target.id === "live" && isBusy()) event.detail.shouldSwap = false;
  });
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog && !dialog.open) dialog.showModal();
    document.querySelectorAll("#live form").forEach(count);
  });
  document.body.addEventListener("htmx:responseError", (event) => {
    tell("lost", `the server answered ${event.detail.xhr.status}`);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
  dialog.addEventListener("close", () => dialog.replaceChildren());

  // --- selection ------------------------------------------------------------------------------------------------------

  function count(form) {
    const boxes = [...form.querySelectorAll('tbody input[type="checkbox"]')];
    const chosen = boxes.filter((box) => box.checked).length;
    const all = form.querySelector("[data-all]");
    if (all) {
      all.checked = chosen > 0 && chosen === boxes.length;
      all.indeterminate = chosen > 0 && chosen < boxes.length;
    }
    form.querySelectorAll("[data-needs-selection]").forEach((button) => { button.disabled = chosen === 0; });
    form.querySelectorAll("[data-count]").forEach((place) => {
      place.textContent = chosen ? `${chosen} selected` : place.dataset.count;
    });
  }

  document.addEventListener("change", (event) => {
    const form = event.target.closest("#live form");
    if (!form || event.target.type !== "checkbox") return;
    if (event.target.matches("[data-all]")) {
      form.querySelectorAll('tbody input[type="checkbox"]').forEach((box) => { box.checked = event.target.checked; });
    }
    count(form);
  });
  document.querySelectorAll("#live form").forEach(count);

  // --- menu and keyboard ------------------------------------------------------------------------------------------------

  const menuButton = document.getElementById("menu-button");
  menuButton?.addEventListener("click", () => {
    const isOpen = document.getElementById("menu").classList.toggle("open");
    menuButton.setAttribute("aria-expanded", String(isOpen));
  });

  function rows() {
    return [...document.querySelectorAll("#live tbody tr")].filter((row) => row.querySelector("a, input"));
  }

  function moveRow(step) {
    const all = rows();
    const at = all.findIndex((row) => row.contains(document.activeElement));
    const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
    next?.querySelector("a, input")?.focus();
  }

  const keys = {
    "/": () => document.querySelector(".filters input")?.focus(),
    "?": () => {
      dialog.replaceChildren(document.getElementById("keys").content.cloneNode(true));
      dialog.showModal();
    },
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => document.activeElement.closest?.("tr")?.querySelector('input[type="checkbox"]')?.click(),
    p: () => setPaused(!isPaused),
  };
  let isGoing = false;

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.matches("textarea, select") || (event.target.matches("input") && event.target.type !== "checkbox")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`)?.click();
    } else if (event.key === "g") {
      isGoing = true;
    } else if (Object.hasOwn(keys, event.key)) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  showPaused();
  connect();
})();
