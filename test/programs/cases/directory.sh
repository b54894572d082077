# needs: slapd ldapadd vsftpd curl lftp
. /programs/common.sh
mkdir ldap
cat >slapd.conf <<P
include /etc/ldap/schema/core.schema
pidfile $WORK/slapd.pid
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix "dc=a"
rootdn "cn=root,dc=a"
rootpw secret
directory $WORK/ldap
maxsize 10485760
P
slapd -f slapd.conf -h ldap://127.0.0.1:28170 -d 0 >slapd.log 2>&1 & server=$!
until_served 28170
export LDAPURI=ldap://127.0.0.1:28170
printf 'dn: dc=a\nobjectClass: dcObject\nobjectClass: organization\no: a\ndc: a\n' | ldapadd -x -D cn=root,dc=a -w secret
for i in $(seq 100); do printf 'dn: cn=p%s,dc=a\nobjectClass: person\ncn: p%s\nsn: s\n\n' $i $i; done | ldapadd -x -D cn=root,dc=a -w secret | grep -c adding
at_once 20 'ldapsearch -x -LLL -b dc=a "(cn=p$((i % 3 + 1)))" cn | grep ^cn'
midst
ldapsearch -x -LLL -b dc=a '(objectClass=person)' dn | grep -c ^dn
ldapmodify -x -D cn=root,dc=a -w wrong </dev/null 2>&1 | tail -n 1
ends slapd $server
useradd -m eve 2>/dev/null; echo eve:secret | chpasswd
printf 'listen=YES\nlisten_address=127.0.0.1\nlisten_port=28171\nlocal_enable=YES\nwrite_enable=YES\nseccomp_sandbox=NO\nbackground=NO\nsecure_chroot_dir=/var/run/vsftpd/empty\npam_service_name=vsftpd\n' >vs.conf; mkdir -p /var/run/vsftpd/empty
chown root vs.conf; vsftpd "$WORK/vs.conf" & server=$!
until_served 28171
head -c 500000 /usr/bin/bash >up
get -T up ftp://eve:secret@127.0.0.1:28171/; get ftp://eve:secret@127.0.0.1:28171/up | cmp - up && echo same
lftp -c 'open -u eve,secret 127.0.0.1:28171; mkdir d; put up -o d/x; ls d' | awk '{print $3, $5, $9}'
get ftp://eve:wrong@127.0.0.1:28171/; echo $?
ends vsftpd $server
