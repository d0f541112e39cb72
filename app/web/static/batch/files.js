// What was dropped or chosen: pictures with their paths, or one archive; the rest is left out and counted.

const PICTURE = /\.(jpe?g|jfif|png|webp|bmp|tiff?|gif)$/i;
const ARCHIVE = /\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))$/i;

// The files of a drop, those in folders among them. To be called before the event is over.
export function dropped(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  return entries.length ? inEntries(entries) : Promise.resolve(chosen(transfer.files));
}

export const chosen = (files) => [...files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));

export function sorted(files) {
  const archives = files.filter(({ path }) => ARCHIVE.test(path));
  const pictures = files.filter(({ file, path }) => PICTURE.test(path) || file.type.startsWith("image/"));
  pictures.sort((one, other) => one.path.localeCompare(other.path, "en", { numeric: true }));
  const used = [...archives, ...pictures];
  const bytes = used.reduce((sum, { file }) => sum + file.size, 0);
  return { archives, pictures, bytes, others: files.length - used.length };
}

async function inEntries(entries) {
  const found = [];
  for (const entry of entries) {
    if (entry.isDirectory) found.push(...(await inEntries(await children(entry))));
    else found.push({ file: await promised(entry, "file"), path: entry.fullPath.replace(/^\//, "") });
  }
  return found;
}

// A folder is read in parts, until one is empty.
async function children(folder) {
  const reader = folder.createReader();
  const all = [];
  for (let part = [null]; part.length; all.push(...part)) {
    part = await promised(reader, "readEntries");
  }
  return all;
}

const promised = (from, method) => new Promise((resolve, reject) => from[method](resolve, reject));
