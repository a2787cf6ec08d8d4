-- What `wrk` sends: bodies come from files, because their text must not pass through Lua's quoting.
local function read(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read("*a")
  file:close()
  return text
end

local before, after = {}, {}
local number = 0

function init(args)
  local directory, count = args[1], tonumber(args[2])
  number = tonumber(args[3])
  for i = 1, count do
    before[i] = read(directory .. "/" .. i .. ".before")
    after[i] = read(directory .. "/" .. i .. ".after")
  end
end

function request()
  number = number + 1
  local i = number % #before + 1
  return before[i] .. string.format("%0DIGITSd", number) .. after[i]
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\nINFERWAY {"requests":%d,"microseconds":%d,"bad_status":%d,"socket_errors":%d,'
    .. '"p50_us":%d}\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, latency:percentile(50)))
end
