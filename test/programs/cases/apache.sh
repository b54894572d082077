# needs: apache2 ab curl
. /programs/common.sh
mkdir www run
echo 'it is here' >www/f
printf '#!/bin/sh\necho "Content-Type: text/plain"; echo; echo "$REQUEST_METHOD $QUERY_STRING"; cat\n' >www/c.cgi
chmod 755 www/c.cgi
cat >conf <<P
ServerRoot /usr/lib/apache2
ServerName localhost
PidFile $WORK/run/pid
Listen 28081
DefaultRuntimeDir $WORK/run
ErrorLog $WORK/log
User www-data
Group www-data
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule cgid_module modules/mod_cgid.so
LoadModule mime_module modules/mod_mime.so
TypesConfig /dev/null
ScriptSock $WORK/run/cgisock
DocumentRoot $WORK/www
AddHandler cgi-script .cgi
<Directory $WORK/www>
  Options +ExecCGI
  Require all granted
</Directory>
P
apache2 -f "$WORK/conf" -D FOREGROUND & server=$!
until_served 28081
get localhost:28081/f
get -d body 'localhost:28081/c.cgi?a=b'; echo
ab -q -n 3000 -c 20 -k http://127.0.0.1:28081/f >ab.log 2>&1
grep -E '^(Complete|Failed) requests' ab.log
midst
get localhost:28081/f
kill -USR1 $server
sleep 1
get 'localhost:28081/c.cgi?again'
ab -q -n 500 -c 10 http://127.0.0.1:28081/c.cgi >ab.log 2>&1
grep -E '^(Complete|Failed) requests' ab.log
ends apache $server
