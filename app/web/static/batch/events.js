// Reads server-sent events out of an answer, as EventSource does, which cannot send a key.

// Yields each event: {type, data, id}, the id being the latest that was told; and {retry} where a time is told.
export async function* eventsOf(response) {
  let event = {};
  let id;
  for await (const line of linesOf(response.body)) {
    if (line === "") {
      if (event.data !== undefined) yield { type: event.type || "message", data: event.data, id };
      event = {};
      continue;
    }
    const [, name, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (name === "data") event.data = event.data === undefined ? value : `${event.data}\n${value}`;
    else if (name === "event") event.type = value;
    else if (name === "id") id = value;
    else if (name === "retry" && /^\d+$/.test(value)) yield { retry: Number(value) };
  }
}

// The lines that are whole: one that was cut off with the connection is none.
async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines.map((line) => line.replace(/\r$/, ""));
  }
}
