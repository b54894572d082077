# needs: chromium
# timeout: 180
# options: --memory 3G
. /programs/common.sh
export HOME=$WORK XDG_RUNTIME_DIR=$WORK
cat >p.html <<'P'
<html><body style="background: #246"><h1 id=a>before</h1><canvas id=c width=100 height=100></canvas><script>
document.getElementById('c').getContext('2d').fillRect(10, 10, 50, 50);
const w = new Worker(URL.createObjectURL(new Blob(['postMessage(6*7)'])));
w.onmessage = e => { document.getElementById('a').textContent = 'worker ' + e.data; };
</script></body></html>
P
shoot() {
    timeout 80 chromium --headless --no-sandbox --disable-gpu --no-first-run --user-data-dir="$WORK/u$1" --hide-scrollbars \
        --window-size=400,300 --virtual-time-budget=2000 "${@:2}" "file://$WORK/p.html" 2>>log
}
shoot 1 --dump-dom | grep -o 'worker [0-9]*'
shoot 2 --screenshot="$WORK/shot.png" >/dev/null
echo $?
sha256sum <shot.png
shoot 3 --print-to-pdf="$WORK/p.pdf" >/dev/null
head -c 5 p.pdf; echo
