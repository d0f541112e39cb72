// The frame's slider; and words in the place of pictures that do not come.

const [heat, opacity, fault] = ["heat", "opacity", "fault"].map((id) => document.getElementById(id));
const pictures = document.querySelectorAll(".frame img");

function show() {
  heat.style.opacity = opacity.value / 100;
  opacity.setAttribute("aria-valuetext", `${opacity.value} %`);
}

function fail() {
  document.querySelector(".frame").hidden = true;
  fault.hidden = false;
}

opacity.addEventListener("input", show);
show();
for (const picture of pictures) {
  picture.addEventListener("error", fail);
  if (picture.complete && picture.naturalWidth === 0) fail();
}
