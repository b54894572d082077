# needs: ruby puma curl
. /programs/common.sh
cat >t.rb <<'P'
require 'socket'; require 'digest'; require 'tempfile'; require 'open3'; require 'io/console'; require 'timeout'
puts (1..8).map { |k| Thread.new { (1..1000).sum * k } }.map(&:value).inspect
pids = 4.times.map { |i| fork { exit i } }
puts pids.map { |p| Process.wait2(p)[1].exitstatus }.inspect
puts Open3.capture2('tr a-z A-Z', stdin_data: 'hello')[0]
r, w = IO.pipe; fork { r.close; w.puts Digest::SHA256.hexdigest('x' * 100000) }; w.close; puts r.read
trap('USR1') { puts 'signalled' }; Process.kill('USR1', $$); sleep 0.1
begin; Timeout.timeout(0.1) { sleep }; rescue Timeout::Error; puts 'late'; end
f = Fiber.new { Fiber.yield 1; 2 }; puts f.resume, f.resume
Tempfile.open('x') { |t| t.flock(File::LOCK_EX); t.write('y' * 5000); t.flush; puts File.size(t.path) }
puts Ractor.new { 6 * 7 }.take
P
ruby -W0 t.rb
echo 'run lambda { |env| [200, {}, ["#{env["QUERY_STRING"]}\n"]] }' >config.ru
puma -w 2 -t 1:4 -b tcp://127.0.0.1:28089 config.ru >log 2>&1 & server=$!
until_served 28089
get 'localhost:28089/?first'
at_once 60 'get "localhost:28089/?$((i % 3))"'
midst
get 'localhost:28089/?after'
kill -USR1 $server
sleep 3
get 'localhost:28089/?restarted'
ends puma $server
