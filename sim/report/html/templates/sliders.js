"use strict";
(function () {
  const grid = JSON.parse(document.getElementById("grid").textContent);
  const by = (id) => document.getElementById(id);
  const inputs = grid.axes.map((_, number) => by("slide-" + number));
  const own = grid.axes.map((axis) => axis.own);
  const place = (at) => grid.axes.reduce((number, axis, index) => number * axis.values.length + at[index], 0);
  const base = grid.points[place(own)];

  // As sim.units writes numbers.
  function significant(value) {
    if (value === 0) return "0";
    const size = Math.abs(value), whole = size >= 1 ? String(Math.trunc(size)).length : 0;
    const text = value.toFixed(Math.max(0, 3 - whole));
    return whole > 3 ? text.replace(/\B(?=(\d{3})+(?!\d))/g, ",") : text;
  }
  function time(seconds) {
    const units = [[86400, 86400, "days"], [7200, 3600, "hours"], [1, 1, "s"], [1e-3, 1e-3, "ms"]];
    for (const [limit, factor, unit] of units) {
      if (Math.abs(seconds) >= limit) return significant(seconds / factor) + " " + unit;
    }
    return significant(seconds * 1e6) + " µs";
  }
  function amount(value, unit) {
    for (const [prefix, factor] of [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
      if (Math.abs(value) >= factor) return significant(value / factor) + " " + prefix + unit;
    }
    return significant(value) + " " + unit;
  }
  function tokenRate(value) {
    const short = Number(value.toPrecision(3));
    return (short >= 1e6 ? significant(short / 1e6) + " million" : short.toLocaleString("en-US")) + " tokens/s";
  }
  const sign = (text) => text.replace(/^-/, "−");
  const share = (value) => (100 * value).toFixed(1) + "%";
  const change = (value) => (value < 0 ? "−" : "+") + share(Math.abs(value));
  const sum = (values) => values.reduce((total, value) => total + value, 0);

  function shape(name, attributes, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  // parts: [class, number in the legend, amount], in the order of the bar.
  function draw(svg, parts, most, limit, words) {
    let at = 0;
    const made = [];
    for (const [kind, key, value] of parts) {
      const width = 100 * value / most;
      made.push(shape("rect", {class: kind, x: at + "%", width: width + "%", height: "100%"}));
      if (width >= 4) {
        made.push(shape("text", {class: "on-" + kind, x: at + width / 2 + "%", y: "70%", "text-anchor": "middle"}, key));
      }
      at += width;
    }
    if (limit !== null) {
      made.push(shape("rect", {class: "mark", x: Math.max(0, 100 * limit / most - 0.25) + "%", width: "0.25%", height: "100%"}));
    }
    svg.replaceChildren(...made);
    svg.setAttribute("aria-label", words);
  }
  function groups(point) {
    const found = new Map();
    point[9].forEach((value, index) => {
      const [, group, key] = grid.causes[index];
      found.set(group, [group, key, (found.has(group) ? found.get(group)[2] : 0) + value]);
    });
    return [...found.values()].sort((one, other) => one[1] - other[1]);
  }
  const held = (point) => point[6].map((value, index) => ["m-" + grid.memory[index], index + 1, value]);
  const listed = (parts, show) => parts.map(([kind, , value]) => kind.replace("m-", "") + " " + show(value)).join(", ");

  function picture(who, point, longest, fullest) {
    const used = sum(point[6]), bytes = (value) => amount(value, "B");
    draw(by("time-" + who), groups(point), longest, null, time(point[0]) + ": " + listed(groups(point), time));
    draw(by("bytes-" + who), held(point), fullest, grid.available, bytes(used) + ": " + listed(held(point), bytes));
    by("step-" + who).textContent = time(point[0]);
    by("held-" + who).textContent = bytes(used);
    by("held-" + who).classList.toggle("wrong", point[7] >= 0);
  }
  function causes(point) {
    const total = ["step", base && base[0], point[0]];
    const rows = grid.causes.map(([name], index) => [name, base && base[9][index], point[9][index]]);
    by("causes").replaceChildren(...[...rows, total].map(([name, before, here], index) => {
      const row = document.createElement("tr"), head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      row.append(head);
      const apart = base ? here - before : 0;
      for (const text of [base ? time(before) : "", time(here), apart ? (apart > 0 ? "+" : "") + sign(time(apart)) : ""]) {
        const cell = document.createElement("td");
        cell.className = index === rows.length ? "num last" : "num";
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    }));
  }
  const after = (point) => grid.texts[point[8]].split("\n").filter(Boolean);
  // What is said, what is said of memory or of the rule, and whether that is a hindrance.
  function said(point, at) {
    if (!Array.isArray(point)) return ["", "This cannot be: " + grid.texts[point], true];
    const [step, low, high, rate, tokens, mfu] = point, used = sum(point[6]);
    const moved = at.some((value, index) => value !== own[index]);
    const apart = moved && base ? " (" + change(tokens / base[4] - 1) + " to the scenario)" : "";
    const follows = after(point).map((each) => each.replace(/^plan\./, "").replace("=", " ").replace(/_/g, " "));
    const speed = "Step " + time(step) + ", 90 %: " + time(low) + " to " + time(high) + "; " + tokenRate(tokens) +
      apart + ", " + amount(rate, "FLOP/s") + ", MFU " + share(mfu) + "." +
      (follows.length ? " Follows: " + follows.join(", ") + "." : "");
    const room = "Memory " + amount(used, "B") + " of " + amount(grid.available, "B") + ": ";
    return [speed, room + (point[7] < 0 ? "fits" : grid.texts[point[7]]) + ".", point[7] >= 0];
  }
  function ask(point, at) {
    const sets = grid.axes.filter((axis, index) => at[index] !== own[index]).map((axis) => axis.sets[at[grid.axes.indexOf(axis)]]);
    const words = [...sets, ...(Array.isArray(point) ? after(point) : [])].map((each) => " --set " + (/[^\w.=+-]/.test(each) ? "'" + each + "'" : each));
    return "flopcast estimate scenario.yaml" + words.join("") + (grid.engine ? " --engine " + grid.engine : "");
  }
  function update() {
    const at = inputs.map((input) => Number(input.value)), point = grid.points[place(at)];
    inputs.forEach((input, index) => {
      const text = grid.axes[index].values[at[index]];
      by("slid-" + index).textContent = text;
      input.setAttribute("aria-valuetext", text);
    });
    const [speed, verdict, hindered] = said(point, at);
    by("speed").textContent = speed;
    by("verdict").textContent = verdict;
    by("verdict").classList.toggle("wrong", hindered);
    by("ask").textContent = ask(point, at);
    by("pictures").hidden = !Array.isArray(point);
    if (!Array.isArray(point)) return;
    const points = [base, point].filter(Array.isArray);
    const longest = Math.max(...points.map((each) => each[0]));
    const fullest = Math.max(grid.available, ...points.map((each) => sum(each[6])));
    if (Array.isArray(base)) picture("scenario", base, longest, fullest);
    picture("changed", point, longest, fullest);
    causes(point);
  }
  inputs.forEach((input) => input.addEventListener("input", update));
  by("back").addEventListener("click", () => {
    inputs.forEach((input, index) => { input.value = own[index]; });
    update();
  });
  by("sliders").hidden = false;
  update();
})();
