# needs: Xvfb xclock firefox-esr python3
# timeout: 200
# options: --memory 3G
. /programs/common.sh
export HOME=$WORK
Xvfb :9 -screen 0 640x480x24 >x.log 2>&1 & x=$!
until_true 20 test -S /tmp/.X11-unix/X9
export DISPLAY=:9
xclock & c=$!
until_true 20 sh -c 'xwininfo -root -tree | grep -q xclock' && echo clock
midst
xwininfo -root | grep geometry
xwd -root -silent | wc -c
kill $c
echo '<h1 id=a>x</h1><script>document.title = [1,2,3].map(x => x * x).join()</script>' >p.html
timeout 100 firefox-esr --headless --screenshot "$WORK/shot.png" --window-size=400,300 "file://$WORK/p.html" >f.log 2>&1; echo $?
python3 -c "import struct; d=open('shot.png','rb').read(); print(d[1:4], struct.unpack('>II', d[16:24]))"
ends Xvfb $x
