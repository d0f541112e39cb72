-- For wrk: POSTs a JPEG, and prints what was measured as one line of JSON.
--   wrk ... -s pictures.lua URL -- FILE           always the same picture
--   wrk ... -s pictures.lua URL -- FILE PREFIX    a new file each time: the picture with a comment that counts
-- A prefix of its own for each run keeps the files of all runs apart, so that no cache has met any of them.

local picture, prefix
local count = 0

function init(args)
  local file = assert(io.open(args[1], "rb"))
  picture = file:read("*a")
  file:close()
  prefix = args[2]
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "image/jpeg"
  wrk.body = picture
end

local function commented(text)
  local length = #text + 2 -- counts its own two bytes
  local segment = string.char(0xFF, 0xFE, math.floor(length / 256), length % 256) .. text
  return picture:sub(1, 2) .. segment .. picture:sub(3) -- right behind the start marker
end

function request()
  if not prefix then return wrk.format() end
  count = count + 1
  return wrk.format(nil, nil, nil, commented(prefix .. count))
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.6f, "p50_s": %.6f, "p99_s": %.6f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
