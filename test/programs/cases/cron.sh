# needs: cron crontab
# timeout: 200
. /programs/common.sh
useradd -m bob
(echo '@reboot echo at start >/tmp/boot'; echo '* * * * * id -un >>/tmp/minute') | crontab -u bob -
crontab -u bob -l
cron -f & server=$!
until_true 30 test -s /tmp/boot; cat /tmp/boot
midst
until_true 90 test -s /tmp/minute; head -n 1 /tmp/minute
crontab -u bob -r; crontab -u bob -l
ends cron $server
