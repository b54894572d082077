# needs: tmux
. /programs/common.sh
export TMUX_TMPDIR=$WORK TERM=xterm
tmux -f /dev/null new -d -s one -x 80 -y 24 bash --norc
tmux send-keys -t one 'PS1=; stty size; tty | cut -c 1-9; sleep 100' Enter
until_true 10 sh -c 'tmux capture-pane -p -t one | grep -q "^/dev/pts"'
sleep 0.5
tmux send-keys -t one C-c
tmux send-keys -t one 'echo after $?' Enter
midst
until_true 10 sh -c 'tmux capture-pane -p -t one | grep -q "^after"'
tmux capture-pane -p -t one | grep -v '^$' | grep -v 'PS1\|\$ ' | tail -n 4
tmux split-window -t one 'echo split; sleep 100'
tmux list-panes -t one -F '#{pane_index} #{pane_height}'
tmux resize-window -t one -x 100 -y 30
tmux send-keys -t one.0 'stty size' Enter
until_true 10 sh -c 'tmux capture-pane -p -t one.0 | grep -q " 100"' && echo resized
tmux kill-session -t one; sleep 0.3
tmux ls 2>&1 | cut -c 1-20
# A program that keeps a record of a terminal.
script -qec 'tty >/dev/null && echo terminal; exit 3' /dev/null </dev/null | tr -d '\r'; echo "${PIPESTATUS[0]}"
