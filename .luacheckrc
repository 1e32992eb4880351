-- For luacheck (Debian package lua-check), see TestScriptsPassLuacheck: what Redis gives to
-- a script.
std = {
  read_globals = {
    "redis", "KEYS", "ARGV", "string", "table", "math", "tonumber", "tostring", "type", "pcall", "ipairs", "pairs",
  },
}
max_line_length = 120
ignore = {
  -- A parameter may have the name of a local of the script that has included its function.
  "431",
  -- A script may include functions that it does not use.
  "211/owns", "211/.*_fence", "211/server_time", "211/parse", "211/enqueue", "211/below",
}
