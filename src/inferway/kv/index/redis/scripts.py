"""What runs in the server, in Lua: each script is one atomic step and one round trip.

Only commands that Redis (from 6.2 on) and Valkey share. Keys travel as one string, 8 bytes
each, because packing and reading thousands of arguments is what costs a Python client time.
"""

from __future__ import annotations

# Whether an error says that a key is of a wrong type: another program's, or damaged.
_WRONG_TYPE = """
local function wrong_type(failure)
  local words = type(failure) == 'table' and failure.err or tostring(failure)
  return string.find(words, 'WRONGTYPE', 1, true) ~= nil
end
"""

# The next number of the fence. One that cannot be counted on begins anew, as in an empty server:
# no gateway could take a lease otherwise.
_NEXT_NUMBER = """
local function next_number(fence)
  local last = redis.pcall('GET', fence)
  local is_ours = not last or type(last) == 'string' and string.match(last, '^%d+$') and #last < 19
  if not is_ours and (type(last) == 'string' or wrong_type(last)) then call('UNLINK', fence) end
  return call('INCR', fence)
end
"""

# KEYS: the holders. ARGV: the prompt's keys in one string.
# Answers one string of decimal numbers, for each holder of the first key: its place in KEYS, how
# many keys it holds from the start on, in how many lower tiers some of those lie, and for each of
# these tiers its number, how many, and the place of the first.
#
# `held` is closed under "parent of", so the end of the unbroken run is found by halving.
# A window group must hold the last `blocks` blocks of what is left (protocol.Window), hence the
# walk down; each group may shorten what another one has to look at, hence the loop around it.
# A holder whose keys are of a wrong type holds nothing: KEEP says which, and its writer cures it.
MATCH = (
    """
local call, sub, floor = redis.call, string.sub, math.floor
"""
    + _WRONG_TYPE
    + """
local prompt = ARGV[1]
local length = #prompt / 8
local function key(i) return sub(prompt, i * 8 - 7, i * 8) end
local function has(set, i) return call('SISMEMBER', set, key(i)) == 1 end

local function covered(set, blocks, last)
  local i = last
  while i > 0 do
    if not has(set, i) then last = i - 1
    elseif i == 1 or last - i + 1 == blocks then return last end
    i = i - 1
  end
  return 0
end

local function with_windows(name, windows, last)
  local before
  repeat
    before = last
    for group, blocks in string.gmatch(windows, '(%d+):(%d+)') do
      last = covered(name .. ':g' .. group, tonumber(blocks), last)
    end
  until last == before
  return last
end

local function count(set, last)
  if call('EXISTS', set) == 0 then return 0 end
  local n, at = 0, nil
  for first = 1, last, 512 do
    local part = {}
    for i = first, math.min(first + 511, last) do part[#part + 1] = key(i) end
    for i, held in ipairs(call('SMISMEMBER', set, unpack(part))) do
      n = n + held
      if held == 1 and not at then at = first + i - 2 end
    end
  end
  return n, at
end

local function row(place, name)
  local held = name .. ':held'
  if not has(held, 1) then return {} end
  local last, beyond = 1, length + 1
  while beyond - last > 1 do
    local middle = floor((last + beyond) / 2)
    if has(held, middle) then last = middle else beyond = middle end
  end
  local shape = call('HMGET', name, 'windows', 'lower')
  if shape[1] and shape[1] ~= '' then last = with_windows(name, shape[1], last) end
  if last == 0 then return {} end
  local cells, tiers = {place - 1, last, 0}, 0
  for tier in string.gmatch(shape[2] or '', '%d+') do
    local blocks, at = count(name .. ':t' .. tier, last)
    if blocks > 0 then
      tiers = tiers + 1
      cells[tiers * 3 + 1], cells[tiers * 3 + 2], cells[tiers * 3 + 3] = tier, blocks, at
    end
  end
  cells[3] = tiers
  return cells
end

local answer = {}
for place, name in ipairs(KEYS) do
  local fits, cells = pcall(row, place, name)
  if fits then
    for _, cell in ipairs(cells) do answer[#answer + 1] = cell end
  elseif not wrong_type(cells) then
    error(cells)
  end
end
return table.concat(answer, ' ')
"""
)

# KEYS: the holder, the fence. ARGV as `Write.args` has them: the writer's lease, the batch's
# number, its mode, whether it completes the picture, time to live (ms), the holder's sets, its
# windows, its lower tiers, state, seq, digest; then for each change three: the set,
# + or -, keys.
#
# Modes: `live` changes the picture that readers see, `wipe` empties it first; `begin` and `more`
# build another beside it, which takes its place when it is complete.
# Answers `ok`; `done` if this batch had been written before (its answer was lost); `fenced` if
# the lease is no longer the writer's; `step` if another batch than the one before was the last
# (the server lost some).
WRITE = (
    """
local call, name = redis.call, KEYS[1]
"""
    + _WRONG_TYPE
    + _NEXT_NUMBER
    + """
local lease, number, mode, complete, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]
if call('GET', name .. ':lease') ~= lease then return 'fenced' end
local fresh = mode == 'begin' or mode == 'more'
if mode == 'begin' then
  local record = redis.pcall('HGET', name, 'batch')
  if type(record) == 'table' and wrong_type(record) then call('UNLINK', name) end
else
  local last = call('HGET', name, 'batch')
  if last == number then return 'done' end
  if not last or tonumber(last) ~= number - 1 then return 'step' end
end

local function unlink(at, sets)
  for set in string.gmatch(sets or '', '%S+') do call('UNLINK', at .. set) end
end

-- A set that the record does not name yet begins empty, whatever was left there.
local into = fresh and name .. ':new:' or name .. ':'
local known = call('HGET', name, fresh and 'new' or 'sets') or ''
if mode == 'begin' or mode == 'wipe' then
  unlink(into, known)
  known = ''
end
for set in string.gmatch(ARGV[6], '%S+') do
  if not string.find(' ' .. known .. ' ', ' ' .. set .. ' ', 1, true) then
    call('UNLINK', into .. set)
  end
end

for at = 12, #ARGV, 3 do
  local set, keys = into .. ARGV[at], ARGV[at + 2]
  local command = ARGV[at + 1] == '+' and 'SADD' or 'SREM'
  for first = 1, #keys, 4096 do
    local part = {}
    for i = first, math.min(first + 4088, #keys - 7), 8 do
      part[#part + 1] = string.sub(keys, i, i + 7)
    end
    call(command, set, unpack(part))
  end
end

if fresh and complete then
  unlink(name .. ':', call('HGET', name, 'sets'))
  unlink(name .. ':', ARGV[6])
  for set in string.gmatch(ARGV[6], '%S+') do
    if call('EXISTS', into .. set) == 1 then call('RENAME', into .. set, name .. ':' .. set) end
  end
  into = name .. ':'
end
for set in string.gmatch(ARGV[6], '%S+') do call('PEXPIRE', into .. set, ttl) end

call('HSET', name, 'batch', number)
if mode == 'begin' then call('HSET', name, 'state', 'repairing') end
if fresh then call('HSET', name, 'new', complete and '' or ARGV[6]) end
if complete or not fresh then
  call('HSET', name, 'lease', lease, 'sets', ARGV[6], 'windows', ARGV[7], 'lower', ARGV[8])
end
if mode == 'wipe' or (complete and fresh) then
  call('HSET', name, 'epoch', next_number(KEYS[2]))
end
if complete then call('HSET', name, 'state', ARGV[9], 'seq', ARGV[10], 'digest', ARGV[11]) end
call('PEXPIRE', name, ttl)
return 'ok'
"""
)

# KEYS: the fence, then the holders. ARGV: this gateway, the lease's time to live (ms), that of
# the sets (ms), then for each holder 1 if this gateway can write it, else 0.
# Renews what is ours, takes what is free, gives up what we can no longer write. Answers for each
# holder: its lease, then of the record lease, epoch, batch, state, seq, digest; number of blocks;
# and the key, if there is one, that no gateway has written so. A lease of that kind is free, as is
# one that would never end; the rest is cured by the holder's writer, who misses its last batch.
KEEP = (
    """
local call, gateway, lease_ms, ttl = redis.call, ARGV[1], ARGV[2], ARGV[3]
"""
    + _WRONG_TYPE
    + _NEXT_NUMBER
    + """
local bad
local function read(command, key, ...)
  local found = redis.pcall(command, key, ...)
  if type(found) ~= 'table' or not found.err then return found end
  if not wrong_type(found) then return call(command, key, ...) end
  bad = bad or key
end

local answer = {}
for i = 2, #KEYS do
  bad = false
  local name, able = KEYS[i], ARGV[i + 2] == '1'
  local at = name .. ':lease'
  local lease = read('GET', at)
  local holder = lease and string.match(lease, '^%d+ (.+)$')
  if lease and (not holder or redis.pcall('PTTL', at) == -1) then bad, lease = at, false end
  local ours = lease and holder == gateway
  if ours and not able then
    call('DEL', name .. ':lease')
    ours, lease = false, false
  elseif not lease and able then
    lease, ours = next_number(KEYS[1]) .. ' ' .. gateway, true
    call('SET', name .. ':lease', lease, 'PX', lease_ms)
  elseif ours then
    call('PEXPIRE', name .. ':lease', lease_ms)
  end
  local fields = {'lease', 'epoch', 'batch', 'state', 'seq', 'digest', 'sets'}
  local record = read('HMGET', name, unpack(fields))
    or {false, false, false, false, false, false, false}
  if ours then call('PEXPIRE', name, ttl) end
  local held = read('SCARD', name .. ':held')
  for set in string.gmatch(record[7] or '', '%S+') do
    if ours then call('PEXPIRE', name .. ':' .. set, ttl) end
    if not read('SCARD', name .. ':' .. set) then held = nil end
  end
  record[7] = held or -1
  table.insert(record, 1, lease or false)
  record[9] = bad
  answer[i - 1] = record
end
return answer
"""
)

# KEYS: a holder. ARGV: this gateway, 1 if the holder is gone for good. Gives up the lease if it
# is ours, and then, for good, all that is known of the holder.
LEAVE = """
local call, name = redis.call, KEYS[1]
local lease = call('GET', name .. ':lease')
if not lease then return end
if string.sub(lease, string.find(lease, ' ', 1, true) + 1) ~= ARGV[1] then return end
call('DEL', name .. ':lease')
if ARGV[2] ~= '1' then return end
for field, at in pairs({sets = ':', new = ':new:'}) do
  for set in string.gmatch(call('HGET', name, field) or '', '%S+') do
    call('UNLINK', name .. at .. set)
  end
end
call('UNLINK', name)
"""
