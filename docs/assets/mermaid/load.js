// The themes would fetch Mermaid from a content delivery network if nobody defines `mermaid`.
// This stand-in loads the copy beside it once a page draws its first diagram.
(() => {
  const source = new URL("mermaid.tiny.js", document.currentScript.src);
  let settings = {};
  let loaded;

  const load = () =>
    (loaded ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = source;
      script.onload = () => {
        window.mermaid.initialize(settings);
        resolve(window.mermaid);
      };
      script.onerror = reject;
      document.head.append(script);
    }));

  window.mermaid = {
    initialize: (given) => (settings = given),
    render: async (...drawing) => (await load()).render(...drawing),
  };
})();
