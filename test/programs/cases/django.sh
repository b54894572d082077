# needs: python3 django-admin redis-server curl
. /programs/common.sh
django-admin startproject site1 . && python3 manage.py startapp app
cat >>site1/settings.py <<'P'
INSTALLED_APPS += ['app']
ALLOWED_HOSTS = ['*']
P
cat >app/models.py <<'P'
from django.db import models
class Note(models.Model):
    text = models.CharField(max_length=100)
P
cat >site1/urls.py <<'P'
from django.urls import path
from django.http import JsonResponse
from app.models import Note
def add(request, text):
    Note.objects.create(text=text); return JsonResponse({'n': Note.objects.filter(text=text).count()})
urlpatterns = [path('add/<str:text>', add)]
P
python3 manage.py makemigrations -v 0 app && python3 manage.py migrate -v 0 && python3 manage.py test 2>&1 | tail -n 1
python3 manage.py runserver 127.0.0.1:28180 >log 2>&1 & server=$!
until_served 28180
get localhost:28180/add/one; echo; get localhost:28180/add/one; echo
midst
echo "urlpatterns += [path('late', lambda r: JsonResponse({'late': True}))]" >>site1/urls.py
until_true 30 sh -c 'curl -s localhost:28180/late | grep -q true' && get localhost:28180/late; echo
kill $server; wait $server; echo $?
redis-server --port 28181 --save '' >/dev/null & redis=$!
until_served 28181
cat >work.py <<'P'
from celery import Celery
app = Celery('work', broker='redis://127.0.0.1:28181/0', backend='redis://127.0.0.1:28181/1')
@app.task
def square(n): return n * n
P
python3 -m celery -A work worker -c 3 >celery.log 2>&1 & worker=$!
python3 -c "
from work import square
print(sum(r.get(timeout=40) for r in [square.delay(n) for n in range(50)]))"
ends celery $worker
ends redis $redis
