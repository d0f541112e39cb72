// The ways in: a file that is chosen, the sample, a paste, a drop.

import { $ } from "../dom.js";
import { Problem } from "../server.js";
import { offerFiles, sample } from "../ways.js";

// Calls `look` with each picture that comes in, and `complain` where none comes. `arriving` returns a signal for a
// picture that is on its way, which is aborted when another one comes.
export function offerWays(look, arriving, complain) {
  offerFiles($("file"), take, () => {
    complain("That was no file.", new Problem("Save the picture first, or copy it and paste it here."));
  });
  $("sample").addEventListener("click", takeSample);

  function take([file, ...others]) {
    $("several-count").textContent = others.length + 1;
    $("several").hidden = others.length === 0;
    look({ name: file.name, file });
  }

  async function takeSample() {
    const signal = arriving();
    try {
      take([await sample(signal)]);
    } catch (error) {
      if (!signal.aborted) complain("The sample picture could not be fetched.", error, takeSample);
    }
  }
}
