# needs: su sudo useradd chpasswd python3 passwd
. /programs/common.sh
echo "127.0.0.1 $(hostname)" >>/etc/hosts
useradd -m -s /bin/bash -G sudo alice && id alice | sed 's/[0-9]\{4,\}/N/g'
echo 'alice:secret' | chpasswd
passwd -S alice | cut -d ' ' -f 1,2
su alice -c 'whoami; cd; pwd; ulimit -n >/dev/null && echo limits'
su - alice -c 'echo $HOME; touch x && stat -c %U x; cat /etc/shadow' 2>&1
sudo -u alice -H sh -c 'id -un; echo $HOME $SUDO_USER'
# With a password, at a terminal.
cat >pw.py <<'P'
import os, pty, sys, time
def ask(words, answers):
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp(words[0], words)
    text = b''
    while True:
        try:
            piece = os.read(fd, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
        if answers and text.rstrip().endswith(b':'):
            time.sleep(0.3)
            os.write(fd, answers.pop(0) + b'\n')
            text += b'|'
    return text.decode().replace('\r', '').strip(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
as_alice = ['setpriv', '--reuid=alice', '--regid=alice', '--init-groups', '--reset-env']
print(ask(as_alice + ['sudo', 'sh', '-c', 'id -u; echo -n done'], [b'secret']))
print(ask(as_alice + ['sudo', '-k', 'id', '-u'], [b'wrong', b'wrong', b'wrong'])[1])
print(ask(as_alice + ['su', 'alice', '-c', 'id -un'], [b'secret']))
print(ask(as_alice + ['su', 'root', '-c', 'id -un'], [b'wrong'])[1])
print(ask(as_alice + ['passwd'], [b'secret', b'Much-Longer-7', b'Much-Longer-7'])[1])
print(ask(as_alice + ['su', 'alice', '-c', 'id -un'], [b'Much-Longer-7'])[1])
P
python3 pw.py
usermod -L alice && passwd -S alice | cut -d ' ' -f 1,2
groupadd crew && gpasswd -a alice crew >/dev/null && id -nG alice
userdel -r alice 2>&1 | grep -v 'mail spool'; id alice 2>&1
:
