# needs: nginx php-fpm8.2 wrk curl
# timeout: 120
. /programs/common.sh
mkdir www
cat >www/index.php <<'P'
<?php
session_start();
$_SESSION['n'] = ($_SESSION['n'] ?? 0) + 1;
$db = new PDO('sqlite:' . $_SERVER['DOCUMENT_ROOT'] . '/db');
$db->exec('create table if not exists t (i integer)');
$sum = 0; for ($i = 1; $i <= 1000; $i++) $sum += $i;
echo "sum $sum session {$_SESSION['n']} ", strlen(file_get_contents('php://input')), "\n";
P
echo '<?php echo md5($_GET["x"]), opcache_get_status(false) ? " cached" : "", "\n";' >www/plain.php
echo static >www/file.txt
cat >fpm.conf <<P
[global]
error_log = $WORK/fpm.log
[www]
user = www-data
group = www-data
listen = $WORK/fpm.sock
listen.owner = www-data
pm = dynamic
pm.max_children = 6
pm.start_servers = 2
pm.min_spare_servers = 1
pm.max_spare_servers = 3
php_admin_value[session.save_path] = $WORK/www
P
cat >nginx.conf <<P
user www-data;
daemon off;
worker_processes 2;
pid $WORK/nginx.pid;
error_log $WORK/nginx.log;
events { worker_connections 512; }
http {
    access_log off; client_max_body_size 8m;
    client_body_temp_path $WORK/body; fastcgi_temp_path $WORK/ftmp; proxy_temp_path $WORK/ptmp; uwsgi_temp_path $WORK/utmp; scgi_temp_path $WORK/stmp;
    server {
        listen 28080;
        root $WORK/www;
        location ~ \.php$ { include /etc/nginx/fastcgi_params; fastcgi_param SCRIPT_FILENAME \$document_root\$fastcgi_script_name; fastcgi_pass unix:$WORK/fpm.sock; }
    }
}
P
chown -R www-data www
php-fpm8.2 -F -y fpm.conf & fpm=$!
nginx -c "$WORK/nginx.conf" & web=$!
until_true 20 test -S fpm.sock
until_served 28080
get 'localhost:28080/plain.php?x=dormouse'
get -c jar -b jar localhost:28080/index.php
get -c jar -b jar --data-binary @/bin/bash localhost:28080/index.php | sed 's/[0-9]\{6,\}/many/'
wrk -t 2 -c 20 -d 2 'http://localhost:28080/plain.php?x=1' >wrk.log 2>&1
grep -c 'Non-2xx\|Socket errors' wrk.log
(wrk -t 2 -c 10 -d 4 'http://localhost:28080/plain.php?x=1' >wrk2.log 2>&1) & load=$!
midst
nginx -c "$WORK/nginx.conf" -s reload
kill -USR2 $fpm
wait $load
get -c jar -b jar localhost:28080/index.php
until_true 20 test "$(get localhost:28080/file.txt)" = static
kill -QUIT $web; wait $web; echo "nginx ended with $?"
kill -QUIT $fpm; wait $fpm; echo "fpm ended with $?"
ls "$WORK"/*.sock 2>/dev/null | wc -l
