"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const holder = document.getElementById("figures");
  const figures = holder ? JSON.parse(holder.textContent) : {};
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
        hoverlabel: ground, xaxis: axis, yaxis: axis,
      },
    };
  };
  const draw = () => Promise.all(plots().map((plot) => {
    const { data, layout } = figures[plot.dataset.figure];
    const narrow = plot.clientWidth < 520;
    const shown = { ...layout, template: template(), autosize: true };
    if (narrow) shown.margin = { ...layout.margin, l: 4, r: 6 };
    plot.style.height = `${layout.height}px`;
    return Plotly.react(plot, data, shown, { displayModeBar: false, responsive: true });
  }));

  system.addEventListener("change", () => { root.dataset.theme = system.matches ? "dark" : "light"; draw(); });
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "Copied";
    });
  }
  load().then(draw).then(() => { root.dataset.drawn = String(plots().length); }).catch((error) => {
    for (const plot of plots()) plot.textContent = `This browser cannot draw the figures (${error.message}).`;
    root.dataset.drawn = "0";
  });
})();
