"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const figures = JSON.parse(document.getElementById("figures")?.textContent ?? "[]");
  const plots = () => [...document.querySelectorAll(".plot")];

  // plotly.js comes compressed.
  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  };
  const load = async () => {
    const packed = document.getElementById("plotly");
    if (!packed) return;
    const script = document.createElement("script");
    script.text = await new Response(unpacked(packed.textContent)).text();
    document.head.append(script);
  };

  // Text and lines of the figures follow the page's own colours.
  const template = () => {
    const style = getComputedStyle(root);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = { gridcolor: color("--line"), linecolor: color("--line"), zerolinecolor: color("--line") };
    const ground = { bgcolor: color("--card"), bordercolor: color("--line"), font: { color: color("--text") } };
    return {
      layout: {
        font: { family: style.fontFamily, size: 12.5, color: color("--text") },
        hoverlabel: ground, xaxis: { ...axis, title: { font: { size: 12.5 } } }, yaxis: axis,
      },
    };
  };
  // Labels are wrapped at spaces, and words that are too long for a line lose their middle.
  const short = (word, most) =>
    word.length > most ? `${word.slice(0, most >> 1)}…${word.slice(1 + (most >> 1) - most)}` : word;
  const wrapped = (text, most) => text.split(/ +/).map((word) => short(word, most)).join(" ")
    .match(new RegExp(`.{1,${Math.floor(most)}}(?= |$)`, "g")).map((line) => line.trim()).join("<br>");
  const draw = () => Promise.all(plots().map((plot, number) => {
    const { data, layout } = structuredClone(figures[number]);
    const [{ node, link }] = data, { ticktext } = layout.yaxis ?? {}, room = plot.clientWidth / 7;
    // The labels of the second and the third column share a space.
    const most = (box) => Math.max(8, (room - 12) / (link.target.includes(box) ? 4 : 2));
    if (node) node.label = node.customdata.map((text, box) => wrapped(text, most(box)));
    if (ticktext) layout.yaxis.ticktext = ticktext.map((text) => short(text, room / 3));
    plot.style.height = `${layout.height}px`;
    return Plotly.react(plot, data, { ...layout, template: template(), autosize: true }, { displayModeBar: false });
  }));

  system.addEventListener("change", () => { root.dataset.theme = system.matches ? "dark" : "light"; draw(); });
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  }
  load().then(draw).then(() => {
    addEventListener("resize", draw);
    root.dataset.drawn = String(plots().length);
  }).catch((error) => {
    for (const plot of plots()) plot.textContent = `This browser cannot draw the figures (${error.message}).`;
    root.dataset.drawn = "0";
  });
})();
