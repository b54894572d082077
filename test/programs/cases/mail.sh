# needs: postfix dovecot python3
. /programs/common.sh
useradd -m bob 2>/dev/null; echo bob:secret | chpasswd
postconf -e 'myhostname = here.test' 'mydestination = here.test, localhost' 'inet_interfaces = loopback-only' 'inet_protocols = ipv4' 'home_mailbox = Maildir/' 'maillog_file = /var/log/postfix.log' 'alias_maps =' 'mynetworks = 127.0.0.0/8'
sed -i 's/^smtp  *inet/28150 inet/' /etc/postfix/master.cf
postfix start >/dev/null 2>&1; echo postfix $?
cat >dovecot.conf <<P
protocols = imap
listen = 127.0.0.1
base_dir = $WORK/run
log_path = $WORK/dovecot.log
ssl = no
disable_plaintext_auth = no
mail_location = maildir:~/Maildir
service imap-login {
  inet_listener imap {
    port = 28151
  }
}
passdb {
  driver = pam
}
userdb {
  driver = passwd
}
P
dovecot -c "$WORK/dovecot.conf" -F & imap=$!
until_served 28150; until_served 28151
cat >t.py <<'P'
import imaplib, smtplib, sys, time
def send(n):
    s = smtplib.SMTP('127.0.0.1', 28150); s.sendmail('a@here.test', ['bob@here.test'], f'Subject: mail {n}\r\n\r\nbody {n}\r\n'); s.quit()
for n in range(5): send(n)
i = imaplib.IMAP4('127.0.0.1', 28151); print(i.login('bob', 'secret')[0])
def count(n):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        i.select('INBOX'); k = len(i.search(None, 'ALL')[1][0].split())
        if k == n: return k
        time.sleep(0.1)
    return k
print(count(5))
print('midst', flush=True); sys.stdin.readline()
send(5); print(count(6))
print(sorted(i.fetch(str(k), '(BODY[TEXT])')[1][0][1].strip().decode() for k in range(1, 7)))
i.store('1', '+FLAGS', '\\Deleted'); i.expunge(); print(count(5)); i.logout()
P
python3 t.py
postfix status 2>/dev/null; echo $?
postfix stop >/dev/null 2>&1; echo stopped $?
ends dovecot $imap
