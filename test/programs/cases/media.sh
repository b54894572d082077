# needs: ffmpeg convert gs dot gnuplot R soffice
# timeout: 300
# options: --memory 3G
. /programs/common.sh
export HOME=$WORK
ffmpeg -v error -f lavfi -i testsrc=size=160x120:rate=10:duration=3 -f lavfi -i sine=duration=3 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -threads 2 -c:a aac -y a.mp4; echo $?
ffmpeg -v error -i a.mp4 -f md5 -an - | head -c 4; ffprobe -v error -show_entries stream=codec_name,nb_frames -of csv=p=0 a.mp4
convert -size 200x200 gradient:red-blue -rotate 30 -blur 0x3 t.png && identify -format '%w %h %m\n' t.png
echo 'digraph { a -> b -> c; a -> c }' | dot -Tsvg | sha256sum
echo 'set terminal svg; plot sin(x)' | gnuplot | grep -c path
printf '%%!PS\n/Helvetica findfont 20 scalefont setfont 72 72 moveto (hello) show showpage\n' | gs -q -sDEVICE=png16m -r30 -o p.png - && identify -format '%w %h\n' p.png
R --vanilla -q -s -e 'library(parallel); set.seed(1); print(sum(unlist(mclapply(1:8, function(i) i^2, mc.cores = 2)))); m <- matrix(rnorm(40000), 200); print(round(sum(solve(m) %*% m), 6)); print(coef(lm(dist ~ speed, cars)))'
midst
printf 'a,b\n1,2\n3,4\n' >t.csv
soffice --headless --convert-to xlsx t.csv >/dev/null 2>err; echo $?; test -s t.xlsx && echo made
soffice --headless --convert-to csv --outdir back t.xlsx >/dev/null 2>>err; cat back/t.csv
