# needs: rsync python3 sshd ssh ssh-keygen
. /programs/common.sh
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f key
mkdir -p /root/.ssh; chmod 700 /root/.ssh; cp key.pub /root/.ssh/authorized_keys
/usr/sbin/sshd -D -p 28022 -h "$WORK/host" -o PidFile="$WORK/pid" -o StrictModes=no 2>log & server=$!
until_served 28022
rsh="ssh -p 28022 -i $WORK/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
cp -a /usr/share/perl5 from 2>/dev/null || cp -a /usr/share/doc from
ln from/$(cd from; find . -type f | sort | head -n 1) from/hard; ln -s hard from/soft; mkfifo from/fifo; setfattr -n user.x -v y from/hard 2>/dev/null
rsync -aHX --delete -e "$rsh" from/ localhost:$WORK/to && diff -r --no-dereference from to 2>&1 | grep -v 'is a fifo' | head; echo copied
midst
rm -rf from/a* && echo new >from/new
rsync -aH --delete --stats -e "$rsh" from/ localhost:$WORK/to | grep -E 'Number of (created|regular)' | sed 's/ (.*//'
$rsh localhost 'cat; exit 4' <key.pub | cmp - key.pub; echo "${PIPESTATUS[0]}"
$rsh -tt localhost 'tty | cut -c 1-9; stty size' </dev/null | tr -d '\r'
ends sshd $server
